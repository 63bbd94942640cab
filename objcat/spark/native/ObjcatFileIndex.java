// The part of native reads that Spark must be able to call: which files of a table a query reads. objcat/spark/native/relation.py hands this source
// to the Janino that Spark itself ships, once for each JVM, so that there is no JAR of ours. Only the driver ever loads these classes:
// nothing here may be captured by what Spark sends to executors. Janino wants plain Java: no lambdas, no diamonds, no generics of its own.

import java.io.ByteArrayInputStream;
import java.io.DataOutput;
import java.io.IOException;
import java.lang.ref.WeakReference;
import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import java.util.function.Consumer;
import java.util.zip.InflaterInputStream;

import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.Float8Vector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.io.WritableUtils;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute$;
import org.apache.spark.sql.catalyst.catalog.BucketSpec;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.catalyst.plans.JoinType;
import org.apache.spark.sql.catalyst.plans.JoinType$;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNodeTag;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation$;
import org.apache.spark.sql.execution.datasources.PartitionDirectory$;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.types.*;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The files of one scan, with what is known of each: its size, its bucket, constants (declared to Spark as partition columns) and the bounds
 * of its columns. Immutable but for the bounds, which are decoded when a filter first asks for them.
 *
 * Spark re-applies filters on data columns to the rows, so here they only leave out files of which no row can pass. Filters on constants are
 * evaluated exactly, because Spark leaves those to the index.
 */
public class ObjcatFileIndex implements FileIndex {
  static final long BLOCK_BYTES = 128L << 20;
  static final int BUCKET_KEYS_MAX = 256;

  private final String name;
  private final byte[] encoded;
  private final StructType constants;
  private final List bucketColumns;
  private final FileStatus[] files;
  private final InternalRow[] values;
  private final long[] rows, bucket, bucketCount;
  private final long bytes;
  private Map bounds;

  /** encoded: a deflated Arrow stream with one row for each file; see `_encoded` in relation.py. */
  public ObjcatFileIndex(String name, byte[] encoded, StructType constants, List bucketColumns) throws Exception {
    this.name = name;
    this.encoded = encoded;
    this.constants = constants;
    this.bucketColumns = bucketColumns;
    Decoder decoder = new Decoder(encoded);
    try {
      byte[][] paths = decoder.texts("path");
      long[] sizes = decoder.longs("bytes", 0L);
      rows = decoder.longs("rows", 0L);
      bucket = decoder.longs("bucket", 0L);
      bucketCount = decoder.longs("bucket_count", 0L);
      files = new FileStatus[paths.length];
      long sum = 0;
      for (int i = 0; i < files.length; i++) {
        files[i] = new FileStatus(sizes[i], false, 1, BLOCK_BYTES, 0L, new Path(new String(paths[i], "UTF-8")));
        sum += sizes[i];
      }
      bytes = sum;
      values = constantRows(decoder);
    } finally {
      decoder.close();
    }
  }

  private InternalRow[] constantRows(Decoder decoder) {
    Object[][] columns = new Object[constants.length()][];
    for (int c = 0; c < columns.length; c++) columns[c] = decoder.constants(constants.fields()[c], files.length);
    InternalRow[] result = new InternalRow[files.length];
    for (int i = 0; i < result.length; i++) {
      Object[] row = new Object[columns.length];
      for (int c = 0; c < columns.length; c++) row[c] = columns[c][i];
      result[i] = columns.length == 0 ? InternalRow.empty() : new GenericInternalRow(row);
    }
    return result;
  }

  // ---- what Spark asks

  public scala.collection.immutable.Seq rootPaths() { return PythonUtils.toSeq(new ArrayList()); }

  public scala.collection.immutable.Seq listFiles(scala.collection.immutable.Seq constantFilters, scala.collection.immutable.Seq filters) {
    BasePredicate[] exact = new BasePredicate[constantFilters.size()];
    for (int q = 0; q < exact.length; q++) exact[q] = predicate((Expression) constantFilters.apply(q));
    List conjuncts = new ArrayList();
    for (int q = 0; q < filters.size(); q++) split((Expression) filters.apply(q), conjuncts);
    Pruner pruner = new Pruner(conjuncts.isEmpty() ? new HashMap() : bounds(), rows);
    int[] hashes = bucketHashes(conjuncts);
    Map byValues = new LinkedHashMap();
    for (int i = 0; i < files.length; i++) {
      if (!inBucket(hashes, i)) continue;
      boolean kept = true;
      for (int q = 0; kept && q < exact.length; q++) kept = exact[q].eval(values[i]);
      for (int q = 0; kept && q < conjuncts.size(); q++) kept = pruner.mayBe((Expression) conjuncts.get(q), true, i);
      if (!kept) continue;
      List group = (List) byValues.get(values[i]);
      if (group == null) byValues.put(values[i], group = new ArrayList());
      group.add(files[i]);
    }
    List directories = new ArrayList();
    for (Iterator it = byValues.entrySet().iterator(); it.hasNext(); ) {
      Map.Entry entry = (Map.Entry) it.next();
      FileStatus[] kept = (FileStatus[]) ((List) entry.getValue()).toArray(new FileStatus[0]);
      directories.add(PartitionDirectory$.MODULE$.apply((InternalRow) entry.getKey(), kept));
    }
    return PythonUtils.toSeq(directories);
  }

  public String[] inputFiles() {
    String[] paths = new String[files.length];
    for (int i = 0; i < paths.length; i++) paths[i] = files[i].getPath().toString();
    return paths;
  }

  public void refresh() {}
  public long sizeInBytes() { return bytes; }
  public StructType partitionSchema() { return constants; }
  public boolean isTimeTravel() { return false; }
  public scala.Option metadataOpsTimeNs() { return scala.Option.apply(null); }
  public String toString() { return name; }

  // Equal relations let Spark reuse exchanges and find cached frames.
  public boolean equals(Object other) {
    return other instanceof ObjcatFileIndex && Arrays.equals(encoded, ((ObjcatFileIndex) other).encoded) && constants.equals(((ObjcatFileIndex) other).constants);
  }
  public int hashCode() { return Arrays.hashCode(encoded); }

  // ---- filters

  // Scala's methods have bridges that Janino may pick: what they return is said here once.
  private static Expression left(BinaryExpression e) { return (Expression) ((Object) e.left()); }
  private static Expression right(BinaryExpression e) { return (Expression) ((Object) e.right()); }
  private static Expression child(UnaryExpression e) { return (Expression) ((Object) e.child()); }

  private static void split(Expression e, List into) {
    if (e instanceof And) {
      split(left((And) e), into);
      split(right((And) e), into);
    } else into.add(e);
  }

  /** A filter over constants, bound by name to their rows. */
  private BasePredicate predicate(Expression e) {
    scala.collection.immutable.Seq attributes = org.apache.spark.sql.catalyst.types.DataTypeUtils.toAttributes(constants);
    scala.collection.immutable.Seq used = e.references().toSeq();
    List bound = new ArrayList();
    for (int i = 0; i < attributes.size(); i++) {
      Object attribute = attributes.apply(i);
      for (int r = 0; r < used.size(); r++)
        if (((Attribute) used.apply(r)).name().equals(((Attribute) attribute).name())) attribute = used.apply(r);
      bound.add(attribute);
    }
    BasePredicate made = Predicate$.MODULE$.create(e, PythonUtils.toSeq(bound));
    made.initialize(0);
    return made;
  }

  /** The hashes that the bucket columns of a passing row can have; null when the filters do not say. */
  private int[] bucketHashes(List conjuncts) {
    List combinations = new ArrayList();
    combinations.add(new ArrayList());
    for (Iterator it = bucketColumns.iterator(); it.hasNext(); ) {
      List literals = literalsOf((String) it.next(), conjuncts);
      if (literals == null || literals.size() * combinations.size() > BUCKET_KEYS_MAX) return null;
      List longer = new ArrayList();
      for (int c = 0; c < combinations.size(); c++)
        for (int l = 0; l < literals.size(); l++) {
          List one = new ArrayList((List) combinations.get(c));
          one.add(literals.get(l));
          longer.add(one);
        }
      combinations = longer;
    }
    if (bucketColumns.isEmpty()) return null;
    int[] hashes = new int[combinations.size()];
    for (int c = 0; c < hashes.length; c++)
      hashes[c] = ((Number) new Murmur3Hash(PythonUtils.toSeq((List) combinations.get(c)), 42).eval(InternalRow.empty())).intValue();
    return hashes;
  }

  private static List literalsOf(String column, List conjuncts) {
    for (int q = 0; q < conjuncts.size(); q++) {
      Object e = conjuncts.get(q);
      List found = new ArrayList();
      Expression attribute = null;
      if (e instanceof EqualTo || e instanceof EqualNullSafe) {
        BinaryComparison equal = (BinaryComparison) e;
        boolean mirrored = left(equal) instanceof Literal;
        attribute = mirrored ? right(equal) : left(equal);
        found.add(mirrored ? left(equal) : right(equal));
      } else if (e instanceof In) {
        attribute = ((In) e).value();
        for (int l = 0; l < ((In) e).list().size(); l++) found.add(((In) e).list().apply(l));
      } else if (e instanceof InSet && ((InSet) e).hset().size() <= BUCKET_KEYS_MAX) {
        attribute = child((UnaryExpression) e);
        for (scala.collection.Iterator it = ((InSet) e).hset().iterator(); it.hasNext(); ) found.add(new Literal(it.next(), attribute.dataType()));
      }
      if (!Pruner.isColumn(attribute) || !((AttributeReference) attribute).name().equals(column)) continue;
      // The hash is that of the column's type: a literal of another type would be of another bucket.
      boolean same = true;
      for (int l = 0; l < found.size(); l++)
        same = same && found.get(l) instanceof Literal && ((Literal) found.get(l)).dataType().equals(attribute.dataType());
      if (same) return found;
    }
    return null;
  }

  private boolean inBucket(int[] hashes, int i) {
    if (hashes == null || bucketCount[i] <= 0) return true;
    for (int h = 0; h < hashes.length; h++) if (Math.floorMod((long) hashes[h], bucketCount[i]) == bucket[i]) return true;
    return false;
  }

  private synchronized Map bounds() {
    if (bounds == null) {
      try {
        Decoder decoder = new Decoder(encoded);
        try {
          bounds = decoder.bounds();
        } finally {
          decoder.close();
        }
      } catch (Exception e) {
        throw new RuntimeException(e);
      }
    }
    return bounds;
  }

  /** Bounds of one column: by file, a value that none is below, one that none is above (null: not known), and its nulls (-1: not known). */
  static class Bounds {
    Comparable[] lower, upper;
    long[] nulls;
  }

  /** Reads what Python encoded. Integers stand for all whole numbers, dates, times and booleans; decimals come as text. */
  static class Decoder {
    private final BufferAllocator allocator;
    private final ArrowStreamReader reader;
    private final VectorSchemaRoot root;

    Decoder(byte[] encoded) throws Exception {
      allocator = org.apache.spark.sql.util.ArrowUtils$.MODULE$.rootAllocator().newChildAllocator("objcat", 0L, Long.MAX_VALUE);
      reader = new ArrowStreamReader(new InflaterInputStream(new ByteArrayInputStream(encoded)), allocator);
      root = reader.getVectorSchemaRoot();
      reader.loadNextBatch();
    }

    void close() throws Exception {
      reader.close();
      allocator.close();
    }

    byte[][] texts(String name) {
      VarCharVector vector = (VarCharVector) root.getVector(name);
      byte[][] found = new byte[root.getRowCount()][];
      for (int i = 0; i < found.length; i++) found[i] = vector.isNull(i) ? null : vector.get(i);
      return found;
    }

    long[] longs(String name, long ifNull) {
      BigIntVector vector = (BigIntVector) root.getVector(name);
      long[] found = new long[root.getRowCount()];
      for (int i = 0; i < found.length; i++) found[i] = vector.isNull(i) ? ifNull : vector.get(i);
      return found;
    }

    Object[] constants(StructField field, int count) {
      Object[] found = new Object[count];
      FieldVector vector = root.getVector("constant:" + field.name());
      for (int i = 0; i < count; i++) {
        if (vector.isNull(i)) continue;
        if (field.dataType() instanceof StringType) found[i] = UTF8String.fromBytes(((VarCharVector) vector).get(i));
        else if (field.dataType() instanceof IntegerType) found[i] = Integer.valueOf((int) ((BigIntVector) vector).get(i));
        else found[i] = Long.valueOf(((BigIntVector) vector).get(i));
      }
      return found;
    }

    Map bounds() {
      Map found = new HashMap();
      for (Iterator it = root.getFieldVectors().iterator(); it.hasNext(); ) {
        FieldVector vector = (FieldVector) it.next();
        if (!vector.getName().startsWith("nulls:")) continue;
        String column = vector.getName().substring(6);
        Bounds one = new Bounds();
        one.nulls = longs(vector.getName(), -1L);
        one.lower = comparable(root.getVector("lower:" + column));
        one.upper = comparable(root.getVector("upper:" + column));
        found.put(column, one);
      }
      return found;
    }

    private Comparable[] comparable(FieldVector vector) {
      boolean decimal = "decimal".equals(vector.getField().getMetadata().get("kind"));
      Comparable[] found = new Comparable[root.getRowCount()];
      for (int i = 0; i < found.length; i++) {
        if (vector.isNull(i)) continue;
        if (vector instanceof BigIntVector) found[i] = Long.valueOf(((BigIntVector) vector).get(i));
        else if (vector instanceof Float8Vector) found[i] = Double.valueOf(((Float8Vector) vector).get(i));
        else if (decimal) found[i] = new BigDecimal(new String(((VarCharVector) vector).get(i)));
        else found[i] = UTF8String.fromBytes(((VarCharVector) vector).get(i));
      }
      return found;
    }
  }

  /** Whether a row of a file can make a filter true, or false; a null is neither. Whatever is not understood can be both. */
  static class Pruner {
    private final Map bounds;
    private final long[] rows;
    private final Map members = new IdentityHashMap();

    Pruner(Map bounds, long[] rows) {
      this.bounds = bounds;
      this.rows = rows;
    }

    /** A column of the files; filters on `_metadata` come under bare names too, and are none. */
    static boolean isColumn(Expression e) {
      if (!(e instanceof AttributeReference)) return false;
      String metadata = ((AttributeReference) e).metadata().json();
      return metadata.indexOf("__file_source_") < 0 && metadata.indexOf("__metadata_col") < 0;
    }

    boolean mayBe(Expression e, boolean wanted, int i) {
      if (e instanceof And || e instanceof Or) {
        Expression left = left((BinaryExpression) e), right = right((BinaryExpression) e);
        return e instanceof And == wanted ? mayBe(left, wanted, i) && mayBe(right, wanted, i) : mayBe(left, wanted, i) || mayBe(right, wanted, i);
      }
      if (e instanceof Not) return mayBe(child((UnaryExpression) e), !wanted, i);
      if (e instanceof IsNull) return nullness(child((UnaryExpression) e), wanted, i);
      if (e instanceof IsNotNull) return nullness(child((UnaryExpression) e), !wanted, i);
      if (e instanceof BinaryComparison) return comparison((BinaryComparison) e, wanted, i);
      if (e instanceof In || e instanceof InSet) return membership(e, wanted, i);
      if (e instanceof StartsWith) return !wanted || prefix((StartsWith) e, i);
      if (e instanceof AttributeReference && e.dataType() instanceof BooleanType) {
        Bounds of = boundsOf(e);
        return of == null || !allNull(of, i) && compares("=", of, Long.valueOf(wanted ? 1L : 0L), false, i);
      }
      return true;
    }

    private Bounds boundsOf(Expression e) {
      Expression column = bare(e);
      return isColumn(column) ? (Bounds) bounds.get(((AttributeReference) column).name()) : null;
    }

    /** Without a cast that changes no value and not their order. */
    private static Expression bare(Expression e) {
      if (!(e instanceof Cast)) return e;
      Expression child = child((UnaryExpression) e);
      DataType from = child.dataType(), to = e.dataType();
      boolean whole = isWhole(from) && isWhole(to) && to.defaultSize() >= from.defaultSize();
      return whole || from instanceof FloatType && to instanceof DoubleType ? child : e;
    }

    private static boolean isWhole(DataType t) { return t instanceof ByteType || t instanceof ShortType || t instanceof IntegerType || t instanceof LongType; }
    private static boolean isFloating(DataType t) { return t instanceof FloatType || t instanceof DoubleType; }

    private boolean allNull(Bounds of, int i) { return of.nulls[i] >= 0 && of.nulls[i] == rows[i]; }

    private boolean nullness(Expression child, boolean isNull, int i) {
      Bounds of = isColumn(child) ? (Bounds) bounds.get(((AttributeReference) child).name()) : null;
      return of == null || (isNull ? of.nulls[i] != 0 : !allNull(of, i));
    }

    private boolean comparison(BinaryComparison e, boolean wanted, int i) {
      boolean mirrored = left(e) instanceof Literal;
      Expression column = mirrored ? right(e) : left(e), other = mirrored ? left(e) : right(e);
      Bounds of = boundsOf(column);
      if (of == null || !(other instanceof Literal)) return true;
      Object value = ((Literal) other).value();
      if (e instanceof EqualNullSafe) {
        if (value == null) return nullness(bare(column), wanted, i);
        if (!wanted) return true;
      }
      Comparable literal = comparable(value, other.dataType(), column.dataType());
      if (literal == null) return true;
      if (allNull(of, i)) return false;
      String sign = e instanceof EqualTo || e instanceof EqualNullSafe ? "=" : e instanceof LessThan ? "<" : e instanceof LessThanOrEqual ? "<="
          : e instanceof GreaterThan ? ">" : e instanceof GreaterThanOrEqual ? ">=" : null;
      if (sign == null) return true;
      if (mirrored) sign = sign.replace('<', '#').replace('>', '<').replace('#', '>');
      return compares(wanted ? sign : opposite(sign), of, literal, isFloating(column.dataType()), i);
    }

    private static String opposite(String sign) {
      return "=".equals(sign) ? "<>" : "<".equals(sign) ? ">=" : "<=".equals(sign) ? ">" : ">".equals(sign) ? "<=" : "<";
    }

    /** Whether a value that is not null can stand in this relation to the literal. Bounds leave NaN out, which Spark takes for the greatest. */
    private static boolean compares(String sign, Bounds of, Comparable literal, boolean floating, int i) {
      if (floating && (((Double) literal).isNaN() || ">".equals(sign) || ">=".equals(sign) || "<>".equals(sign))) return true;
      Comparable lower = of.lower[i], upper = of.upper[i];
      if ("=".equals(sign)) return (lower == null || order(lower, literal) <= 0) && (upper == null || order(upper, literal) >= 0);
      if ("<".equals(sign)) return lower == null || order(lower, literal) < 0;
      if ("<=".equals(sign)) return lower == null || order(lower, literal) <= 0;
      if (">".equals(sign)) return upper == null || order(upper, literal) > 0;
      if (">=".equals(sign)) return upper == null || order(upper, literal) >= 0;
      return lower == null || upper == null || order(lower, literal) != 0 || order(upper, literal) != 0;
    }

    /** As Spark orders: -0.0 equals 0.0. */
    private static int order(Comparable a, Comparable b) {
      if (!(a instanceof Double)) return a.compareTo(b);
      double x = ((Double) a).doubleValue(), y = ((Double) b).doubleValue();
      return x < y ? -1 : x > y ? 1 : 0;
    }

    /** A literal as bounds are kept; null when it does not compare with the column as they do. */
    private static Comparable comparable(Object value, DataType type, DataType column) {
      if (value == null) return null;
      if (type instanceof DecimalType && column instanceof DecimalType) return ((Decimal) value).toJavaBigDecimal();
      if (!type.equals(column)) return null;
      if (type instanceof BooleanType) return Long.valueOf(((Boolean) value).booleanValue() ? 1L : 0L);
      if (isWhole(type) || type instanceof DateType || type instanceof TimestampType || type instanceof TimestampNTZType)
        return Long.valueOf(((Number) value).longValue());
      if (isFloating(type)) return Double.valueOf(((Number) value).doubleValue());
      return StringType$.MODULE$.equals(type) ? (Comparable) value : null;
    }

    private boolean membership(Expression e, boolean wanted, int i) {
      Expression column = e instanceof In ? ((In) e).value() : child((UnaryExpression) e);
      Bounds of = boundsOf(column);
      if (of == null) return true;
      if (allNull(of, i)) return false;
      if (!wanted) return true;
      if (!members.containsKey(e)) members.put(e, membersOf(e, column.dataType()));
      Comparable[] sorted = (Comparable[]) members.get(e);
      if (sorted == null) return true;
      if (sorted.length > 0 && isNaN(sorted[sorted.length - 1])) return true;
      int first = firstFrom(sorted, of.lower[i]);
      return first < sorted.length && (of.upper[i] == null || order(sorted[first], of.upper[i]) <= 0);
    }

    private static boolean isNaN(Comparable value) { return value instanceof Double && ((Double) value).isNaN(); }

    private static int firstFrom(Comparable[] sorted, Comparable lower) {
      int low = 0, high = lower == null ? 0 : sorted.length;
      while (low < high) {
        int middle = (low + high) >>> 1;
        if (order(sorted[middle], lower) < 0) low = middle + 1;
        else high = middle;
      }
      return low;
    }

    /** What an IN lists, without nulls, sorted, NaN last; null when that is not known. */
    private static Comparable[] membersOf(Expression e, DataType column) {
      List found = new ArrayList();
      if (e instanceof In) {
        for (int l = 0; l < ((In) e).list().size(); l++) {
          if (!(((In) e).list().apply(l) instanceof Literal)) return null;
          Literal literal = (Literal) ((In) e).list().apply(l);
          if (literal.value() == null) continue;
          found.add(comparable(literal.value(), literal.dataType(), column));
        }
      } else {
        for (scala.collection.Iterator it = ((InSet) e).hset().iterator(); it.hasNext(); ) {
          Object value = it.next();
          if (value != null) found.add(comparable(value, column, column));
        }
      }
      if (found.contains(null)) return null;
      Object[] sorted = found.toArray();
      Arrays.sort(sorted);
      Comparable[] result = new Comparable[sorted.length];
      for (int m = 0; m < sorted.length; m++) result[m] = (Comparable) sorted[m];
      return result;
    }

    private boolean prefix(StartsWith e, int i) {
      Bounds of = boundsOf(left(e));
      if (of == null || !(right(e) instanceof Literal) || !StringType$.MODULE$.equals(left(e).dataType())) return true;
      if (allNull(of, i)) return false;
      UTF8String wanted = (UTF8String) ((Literal) right(e)).value();
      if (wanted == null) return true;
      boolean reaches = of.upper[i] == null || of.upper[i].compareTo(wanted) >= 0;
      return reaches && (of.lower[i] == null || of.lower[i].compareTo(wanted) <= 0 || ((UTF8String) of.lower[i]).startsWith(wanted));
    }
  }

  /**
   * Spark's Parquet format, which leaves filters on floating columns to Spark: Parquet's own bounds leave NaN out and its dictionaries tell
   * -0.0 from 0.0, so that Parquet would skip rows which pass. The reader comes from a stock format, since it travels to executors.
   */
  public static class Format extends ParquetFileFormat {
    /** Of a file with one row group all tasks but one would find nothing to read. */
    public boolean isSplitable(org.apache.spark.sql.SparkSession session, scala.collection.immutable.Map options, Path path) {
      return !options.contains("objcat.whole");
    }

    public scala.Function1 buildReaderWithPartitionValues(
        org.apache.spark.sql.SparkSession session, StructType data, StructType constants, StructType required,
        scala.collection.immutable.Seq filters, scala.collection.immutable.Map options, Configuration conf) {
      List safe = new ArrayList();
      for (int q = 0; q < filters.size(); q++) {
        org.apache.spark.sql.sources.Filter filter = (org.apache.spark.sql.sources.Filter) filters.apply(q);
        if (isSafe(filter, data)) safe.add(filter);
      }
      return new ParquetFileFormat().buildReaderWithPartitionValues(session, data, constants, required, PythonUtils.toSeq(safe), options, new Sent(conf));
    }

    private static boolean isSafe(org.apache.spark.sql.sources.Filter filter, StructType data) {
      if (filter instanceof org.apache.spark.sql.sources.IsNull || filter instanceof org.apache.spark.sql.sources.IsNotNull) return true;
      String[] used = filter.references();
      for (int r = 0; r < used.length; r++) {
        DataType type = null;
        for (int f = 0; f < data.length(); f++) if (isIn(used[r], data.fields()[f].name())) type = data.fields()[f].dataType();
        if (type == null || holdsFloating(type)) return false;
      }
      return true;
    }

    /** Whether a reference, in backticks where it holds a dot, is a column or a field of it. */
    private static boolean isIn(String reference, String column) {
      String quoted = "`" + column.replace("`", "``") + "`";
      return reference.equals(column) || reference.equals(quoted) || reference.startsWith(column + ".") || reference.startsWith(quoted + ".");
    }

    private static boolean holdsFloating(DataType type) {
      String json = type.json();
      return json.indexOf("\"float\"") >= 0 || json.indexOf("\"double\"") >= 0;
    }
  }

  /**
   * A configuration that is sent without the source of each of its values. Hadoop compresses those one by one, some thousand times, for every
   * relation of a query. What arrives is a plain one.
   *
   * Pages are held against their checksums, and no row group is left out by what a dictionary says, which Parquet reads for that without a
   * look at its checksum: one damaged byte would lose rows.
   */
  static class Sent extends Configuration {
    Sent(Configuration of) {
      super(of);
      setBoolean("parquet.page.verify-checksum.enabled", true);
      setBoolean("parquet.filter.dictionary.enabled", false);
    }

    public void write(DataOutput out) throws IOException {
      Map said = new HashMap();
      for (Iterator it = iterator(); it.hasNext(); ) {
        Map.Entry pair = (Map.Entry) it.next();
        said.put(pair.getKey(), pair.getValue());
      }
      WritableUtils.writeVInt(out, said.size());
      for (Iterator it = said.entrySet().iterator(); it.hasNext(); ) {
        Map.Entry pair = (Map.Entry) it.next();
        Text.writeString(out, (String) pair.getKey());
        Text.writeString(out, (String) pair.getValue());
        WritableUtils.writeCompressedStringArray(out, null);
      }
    }
  }

  /** The columns by which a plan above distributes rows: sets of their ids. `anything`: they are not known. */
  static class Wanted {
    static final Wanted NOTHING = new Wanted(false, new ArrayList()), ANYTHING = new Wanted(true, new ArrayList());
    private final boolean anything;
    private final List sets;

    private Wanted(boolean anything, List sets) {
      this.anything = anything;
      this.sets = sets;
    }

    /** Whether rows that are distributed by these columns need no further exchange. */
    boolean serves(List columns) {
      for (int s = 0; s < sets.size(); s++) if (((HashSet) sets.get(s)).containsAll(columns)) return true;
      return anything;
    }

    Wanted and(List columns) {
      if (anything || columns.isEmpty()) return this;
      List more = new ArrayList(sets);
      more.add(new HashSet(columns));
      return new Wanted(false, more);
    }

    /** above, below: the same columns, as they are known here and there. Others are not there. */
    Wanted named(scala.collection.immutable.Seq above, scala.collection.immutable.Seq below) {
      List found = new ArrayList();
      for (int s = 0; s < sets.size(); s++) {
        HashSet one = new HashSet();
        for (int c = 0; c < above.size(); c++)
          if (((HashSet) sets.get(s)).contains(((Attribute) above.apply(c)).exprId())) one.add(((Attribute) below.apply(c)).exprId());
        if (!one.isEmpty()) found.add(one);
      }
      return new Wanted(anything, found);
    }
  }

  /**
   * Removes a bucket layout that a query does not use: the buckets, which cost a task each, and the exchange that moves log rows to them. Spark
   * removes buckets of plain scans only, and never the exchange. A join, an aggregate or a window by the columns of the layout can use it. This
   * rule runs last in the optimizer of a session that reads our files. Below operators that it does not know, every layout stays.
   */
  public static class Layout extends Rule {
    /** Of an exchange of ours: users' stay. Where Spark loses it on the way, the exchange stays too. */
    static final TreeNodeTag DEALT = new TreeNodeTag("objcat_dealt");
    private static final HashSet HARMLESS = new HashSet(Arrays.asList(new String[] {
        "Filter", "GlobalLimit", "LocalLimit", "Offset", "Tail", "Sort", "Sample", "ReturnAnswer", "Subquery", "Generate",
        "DeserializeToObject", "SerializeFromObject", "MapPartitions", "MapElements", "MapInArrow", "MapInPandas", "ArrowEvalPython", "BatchEvalPython"}));

    public String ruleName() { return "ObjcatLayout"; }

    public org.apache.spark.sql.catalyst.trees.TreeNode apply(org.apache.spark.sql.catalyst.trees.TreeNode plan) {
      // Spark turns this setting off where a frame is cached: nobody knows what it will be used for.
      return SQLConf$.MODULE$.get().autoBucketedScanEnabled() ? without((LogicalPlan) plan, Wanted.NOTHING) : plan;
    }

    private static LogicalPlan without(LogicalPlan plan, Wanted wanted) {
      if (plan instanceof RepartitionByExpression && plan.getTagValue(DEALT).isDefined() && !wanted.serves(ids(((RepartitionByExpression) plan).partitionExpressions())))
        return without((LogicalPlan) plan.children().apply(0), wanted);
      if (plan instanceof LogicalRelation) return wanted.serves(bucketColumns((LogicalRelation) plan)) ? plan : plain((LogicalRelation) plan);
      Wanted below = below(plan, wanted);
      scala.collection.immutable.Seq children = plan.children();
      List changed = new ArrayList();
      boolean same = true;
      for (int c = 0; c < children.size(); c++) {
        LogicalPlan child = (LogicalPlan) children.apply(c);
        LogicalPlan made = without(child, plan instanceof Union ? wanted.named(plan.output(), child.output()) : below);
        same = same && made == child;
        changed.add(made);
      }
      return same ? plan : (LogicalPlan) ((Object) plan.withNewChildren(PythonUtils.toSeq(changed)));
    }

    /** What is wanted of the children: what is wanted of a plan, under the names that its columns have there, and what it wants itself. */
    private static Wanted below(LogicalPlan plan, Wanted wanted) {
      if (plan instanceof Project) return named(wanted, ((Project) plan).projectList());
      if (plan instanceof Aggregate) return named(wanted, ((Aggregate) plan).aggregateExpressions()).and(ids(((Aggregate) plan).groupingExpressions()));
      if (plan instanceof Window) return wanted.and(ids(((Window) plan).partitionSpec()));
      if (plan instanceof WindowGroupLimit) return wanted.and(ids(((WindowGroupLimit) plan).partitionSpec()));
      if (plan instanceof Join) {
        if (isBroadcast((Join) plan) || ((Join) plan).condition().isEmpty()) return wanted;
        return wanted.and(ids(((Expression) ((Join) plan).condition().get()).references().toSeq()));
      }
      return plan instanceof Union || HARMLESS.contains(plan.getClass().getSimpleName()) ? wanted : Wanted.ANYTHING;
    }

    private static boolean isBroadcast(Join join) {
      scala.Option hint = join.hint().rightHint();
      String type = join.joinType().toString();
      boolean left = "LeftAnti".equals(type) || "LeftSemi".equals(type) || "LeftOuter".equals(type) || "Inner".equals(type);
      return left && hint.isDefined() && ((HintInfo) hint.get()).strategy().contains(BROADCAST$.MODULE$);
    }

    private static Wanted named(Wanted wanted, scala.collection.immutable.Seq expressions) {
      List above = new ArrayList(), below = new ArrayList();
      for (int e = 0; e < expressions.size(); e++) {
        NamedExpression one = (NamedExpression) expressions.apply(e);
        Object of = one instanceof Alias ? child((Alias) one) : one;
        if (!(of instanceof Attribute)) continue;
        above.add(one.toAttribute());
        below.add(of);
      }
      return wanted.named(PythonUtils.toSeq(above), PythonUtils.toSeq(below));
    }

    /** Of those that are columns, and not computed. */
    private static List ids(scala.collection.immutable.Seq expressions) {
      List found = new ArrayList();
      for (int e = 0; e < expressions.size(); e++) if (expressions.apply(e) instanceof Attribute) found.add(((Attribute) expressions.apply(e)).exprId());
      return found;
    }

    /** None where a relation is in no buckets. */
    private static List bucketColumns(LogicalRelation plan) {
      List found = new ArrayList();
      if (!(index(plan) instanceof ObjcatFileIndex) || ((HadoopFsRelation) ((Object) plan.relation())).bucketSpec().isEmpty()) return found;
      scala.collection.immutable.Seq names = ((BucketSpec) ((HadoopFsRelation) ((Object) plan.relation())).bucketSpec().get()).bucketColumnNames();
      for (int a = 0; a < plan.output().size(); a++) if (names.contains(((Attribute) plan.output().apply(a)).name())) found.add(((Attribute) plan.output().apply(a)).exprId());
      return found;
    }

    private static FileIndex index(LogicalPlan plan) {
      if (!(plan instanceof LogicalRelation)) return null;
      Object relation = ((LogicalRelation) plan).relation();
      return relation instanceof HadoopFsRelation ? ((HadoopFsRelation) relation).location() : null;
    }

    private static LogicalPlan plain(LogicalRelation plan) {
      if (!(index(plan) instanceof ObjcatFileIndex)) return plan;
      HadoopFsRelation of = (HadoopFsRelation) ((Object) plan.relation());
      if (of.bucketSpec().isEmpty()) return plan;
      BaseRelation made = new HadoopFsRelation(
          of.location(), of.partitionSchema(), of.dataSchema(), scala.Option.apply(null), of.fileFormat(), of.options(), of.sparkSession());
      return copied(plan, made);
    }

    /** Spark's versions differ in what else a relation holds. */
    private static LogicalPlan copied(LogicalRelation plan, BaseRelation relation) {
      try {
        java.lang.reflect.Method[] methods = LogicalRelation.class.getMethods();
        for (int m = 0; m < methods.length; m++) {
          if (!methods[m].getName().equals("copy")) continue;
          Object[] given = new Object[methods[m].getParameterCount()];
          given[0] = relation;
          for (int g = 1; g < given.length; g++) given[g] = LogicalRelation.class.getMethod("copy$default$" + (g + 1), new Class[0]).invoke(plan, new Object[0]);
          return (LogicalPlan) methods[m].invoke(plan, given);
        }
      } catch (ReflectiveOperationException e) {
        return plan;
      }
      return plan;
    }

    /** Once for each session. */
    static void install(org.apache.spark.sql.classic.SparkSession session) {
      synchronized (session.experimental()) {
        scala.collection.immutable.Seq had = session.experimental().extraOptimizations();
        List rules = new ArrayList();
        for (int r = 0; r < had.size(); r++) {
          if (had.apply(r) instanceof Layout) return;
          rules.add(had.apply(r));
        }
        rules.add(new Layout());
        session.experimental().extraOptimizations_$eq(PythonUtils.toSeq(rules));
      }
    }
  }

  /** Makes frames. One object for each JVM, which Python holds. */
  public static class Relations {
    private static final int SCHEMAS_MAX = 64;
    private final Map readers = new WeakHashMap();
    private final ObjectMapper json = new ObjectMapper();
    private final LinkedHashMap schemas = new LinkedHashMap(16, 0.75f, true);

    /**
     * The rows of a query of query.py, whose last step they are. files: of all relations, one after the other. steps: a JSON array; each says
     * of which earlier ones it is. frames: those that steps take as they are, in their order; may be null. rules, order: take the
     * session, for the rules of its optimizer that a merge needs, and for what its planner makes of sorted files; may be null.
     */
    public Object query(org.apache.spark.sql.classic.SparkSession session, byte[] files, String steps, List frames, Consumer rules, Consumer order) throws Exception {
      Layout.install(session);
      if (rules != null) rules.accept(session);
      if (order != null) order.accept(session);
      List made = new ArrayList();
      int framesUsed = 0;
      for (Iterator it = ((List) json.readValue(steps, List.class)).iterator(); it.hasNext(); ) {
        Map step = (Map) it.next();
        List of = new ArrayList();
        for (Iterator numbers = ((List) step.get("of")).iterator(); numbers.hasNext(); ) of.add(made.get(((Number) numbers.next()).intValue()));
        LogicalPlan first = of.isEmpty() ? null : (LogicalPlan) of.get(0);
        String op = (String) step.get("op");
        if (op.equals("relation")) made.add(relation(session, files, step));
        else if (op.equals("frame")) made.add(((org.apache.spark.sql.classic.Dataset) frames.get(framesUsed++)).logicalPlan());
        else if (op.equals("shaped")) made.add(shaped(session, first, (List) step.get("steps")));
        else if (op.equals("union")) made.add(new Union(PythonUtils.toSeq(of), false, false));
        else if (op.equals("joined")) made.add(joined(session, first, (LogicalPlan) of.get(1), step));
        else if (op.equals("dealt")) made.add(dealt(first, step));
        else if (op.equals("grouped")) made.add(grouped(session, first, step));
        else throw new IllegalArgumentException(op);
      }
      return org.apache.spark.sql.classic.Dataset$.MODULE$.ofRows(session, (LogicalPlan) made.get(made.size() - 1));
    }

    private LogicalPlan relation(org.apache.spark.sql.classic.SparkSession session, byte[] files, Map said) throws Exception {
      StructType constants = schema((String) said.get("constants")), schema = schema((String) said.get("schema"));
      List range = (List) said.get("files"), hashed = (List) said.get("hashed");
      byte[] own = Arrays.copyOfRange(files, ((Number) range.get(0)).intValue(), ((Number) range.get(1)).intValue());
      FileIndex index = new ObjcatFileIndex((String) said.get("name"), own, constants, hashed);
      int buckets = ((Number) said.get("buckets")).intValue();
      scala.Option spec = scala.Option.apply(
          buckets == 0 ? null : new BucketSpec(buckets, PythonUtils.toSeq(hashed), PythonUtils.toSeq(new ArrayList())));
      scala.collection.immutable.Map options = PythonUtils.toScalaMap((Map) said.get("options"));
      org.apache.spark.sql.classic.SparkSession reader = reader(session, (Map) said.get("defaults"), (Map) said.get("settings"));
      LogicalPlan plan = LogicalRelation$.MODULE$.apply((BaseRelation) ((Object) new HadoopFsRelation(index, constants, schema, spec, new Format(), options, reader)), false);
      List names = (List) said.get("columns");
      if (said.get("row_index") != null) {
        // Comes last, whatever it is called: the table may have a column of that name.
        plan = (LogicalPlan) ((Object) ((LogicalRelation) plan).withMetadataColumns());
      }
      // By position: two physical names may differ in case alone.
      List chosen = new ArrayList();
      for (int c = 0; c < names.size(); c++) chosen.add(named((Expression) plan.output().apply(c), (String) names.get(c)));
      if (said.get("row_index") != null) {
        Expression metadata = (Expression) plan.output().apply(names.size());
        int at = ((StructType) metadata.dataType()).fieldIndex(ParquetFileFormat.ROW_INDEX());
        chosen.add(named(new GetStructField(metadata, at, scala.Option.apply(ParquetFileFormat.ROW_INDEX())), (String) said.get("row_index")));
      }
      return new Project(PythonUtils.toSeq(chosen), plan);
    }

    /** Of its text. Queries of a table say the same ones again, which take a millisecond to read. */
    private StructType schema(String text) {
      synchronized (schemas) {
        StructType found = (StructType) schemas.get(text);
        if (found == null) schemas.put(text, found = (StructType) DataType.fromJson(text));
        if (schemas.size() > SCHEMAS_MAX) schemas.remove(schemas.keySet().iterator().next());
        return found;
      }
    }

    /** Without metadata: the default of a column is for the reader of its files alone. */
    private static Expression named(Expression value, String name) {
      scala.collection.immutable.Seq none = PythonUtils.toSeq(new ArrayList());
      return new Alias(value, name, NamedExpression$.MODULE$.newExprId(), none, scala.Option.apply(org.apache.spark.sql.types.Metadata.empty()), none);
    }

    /** Filters, as SQL or as what `outside` takes, and projections, as lists of SQL, and of columns by name, some of them cast. */
    private static LogicalPlan shaped(org.apache.spark.sql.classic.SparkSession session, LogicalPlan plan, List steps) throws Exception {
      ParserInterface parser = session.sessionState().sqlParser();
      for (Iterator it = steps.iterator(); it.hasNext(); ) {
        Object step = it.next();
        if (step instanceof String) {
          plan = new Filter(parser.parseExpression((String) step), plan);
          continue;
        }
        if (step instanceof Map) {
          plan = new Filter(outside((Map) step), plan);
          continue;
        }
        List chosen = new ArrayList();
        for (Iterator columns = ((List) step).iterator(); columns.hasNext(); ) {
          Object column = columns.next();
          if (column instanceof String) {
            chosen.add(parser.parseExpression((String) column));
            continue;
          }
          Map said = (Map) column;
          Expression value = UnresolvedAttribute$.MODULE$.quoted((String) said.get("column"));
          if (said.get("type") != null) value = Cast$.MODULE$.apply(value, DataType.fromJson((String) said.get("type")), false);
          chosen.add(said.get("name") == null ? value : named(value, (String) said.get("name")));
        }
        plan = new Project(PythonUtils.toSeq(chosen), plan);
      }
      return plan;
    }

    /** Not one of the listed numbers, each of which belongs to one of the groups. As SQL, the parser would take 0.03 ms for each of them. */
    private static Expression outside(Map said) {
      Expression inside = null;
      for (Iterator it = ((List) said.get("groups")).iterator(); it.hasNext(); ) {
        List group = (List) it.next(), numbers = new ArrayList();
        for (Iterator listed = ((List) group.get(1)).iterator(); listed.hasNext(); ) numbers.add(literal(listed.next()));
        Expression one = new And(
            new EqualTo(UnresolvedAttribute$.MODULE$.quoted((String) said.get("group")), literal(group.get(0))),
            new In(UnresolvedAttribute$.MODULE$.quoted((String) said.get("number")), PythonUtils.toSeq(numbers)));
        inside = inside == null ? one : new Or(inside, one);
      }
      return new Not(inside);
    }

    private static Literal literal(Object number) { return new Literal(Long.valueOf(((Number) number).longValue()), LongType$.MODULE$); }

    private static LogicalPlan joined(org.apache.spark.sql.classic.SparkSession session, LogicalPlan left, LogicalPlan right, Map said) throws Exception {
      LogicalPlan hinted = new UnresolvedHint((String) said.get("hint"), PythonUtils.toSeq(new ArrayList()), right);
      Expression on = session.sessionState().sqlParser().parseExpression((String) said.get("on"));
      return new Join(left, hinted, JoinType$.MODULE$.apply((String) said.get("how")), scala.Option.apply(on), JoinHint$.MODULE$.NONE());
    }

    private static LogicalPlan dealt(LogicalPlan plan, Map said) {
      List by = new ArrayList();
      for (Iterator it = ((List) said.get("columns")).iterator(); it.hasNext(); ) by.add(UnresolvedAttribute$.MODULE$.quoted((String) it.next()));
      LogicalPlan made = RepartitionByExpression$.MODULE$.apply(PythonUtils.toSeq(by), plan, ((Number) said.get("count")).intValue());
      if (Boolean.TRUE.equals(said.get("for_layout"))) made.setTagValue(Layout.DEALT, Boolean.TRUE);
      return made;
    }

    /** Through a frame: Spark's versions differ in what an aggregate holds. */
    private static LogicalPlan grouped(org.apache.spark.sql.classic.SparkSession session, LogicalPlan plan, Map said) {
      org.apache.spark.sql.classic.Dataset rows = org.apache.spark.sql.classic.Dataset$.MODULE$.ofRows(session, plan);
      List by = new ArrayList(), aggregates = new ArrayList();
      for (Iterator it = ((List) said.get("names")).iterator(); it.hasNext(); ) by.add(rows.col((String) it.next()));
      for (Iterator it = ((List) said.get("aggregates")).iterator(); it.hasNext(); ) aggregates.add(org.apache.spark.sql.functions.expr((String) it.next()));
      org.apache.spark.sql.Column first = (org.apache.spark.sql.Column) aggregates.remove(0);
      return ((org.apache.spark.sql.classic.Dataset) ((Object) rows.groupBy(PythonUtils.toSeq(by)).agg(first, PythonUtils.toSeq(aggregates)))).logicalPlan();
    }

    /**
     * The session whose settings the files are read with: a clone of the user's, following it in all but some. It is not used for anything
     * else. Kept while a relation uses it. defaults: where the user's says nothing. settings: whatever it says.
     */
    private synchronized org.apache.spark.sql.classic.SparkSession reader(org.apache.spark.sql.classic.SparkSession session, Map defaults, Map settings) {
      WeakReference kept = (WeakReference) readers.get(session);
      org.apache.spark.sql.classic.SparkSession reader = kept == null ? null : (org.apache.spark.sql.classic.SparkSession) kept.get();
      if (reader == null) {
        reader = session.cloneSession();
        readers.put(session, new WeakReference(reader));
      }
      Map wanted = new HashMap(defaults);
      scala.collection.Iterator own = session.sessionState().conf().getAllConfs().iterator();
      while (own.hasNext()) {
        scala.Tuple2 pair = (scala.Tuple2) own.next();
        wanted.put(pair._1(), pair._2());
      }
      wanted.putAll(settings);
      // Only what differs is touched: other threads may be reading with it.
      Map present = new HashMap();
      scala.collection.Iterator had = reader.sessionState().conf().getAllConfs().iterator();
      while (had.hasNext()) {
        scala.Tuple2 pair = (scala.Tuple2) had.next();
        present.put(pair._1(), pair._2());
      }
      for (Iterator it = wanted.entrySet().iterator(); it.hasNext(); ) {
        Map.Entry entry = (Map.Entry) it.next();
        if (!entry.getValue().equals(present.get(entry.getKey())))
          reader.sessionState().conf().setConfString((String) entry.getKey(), (String) entry.getValue());
      }
      for (Iterator it = new HashSet(present.keySet()).iterator(); it.hasNext(); ) {
        String key = (String) it.next();
        if (!wanted.containsKey(key)) reader.sessionState().conf().unsetConf(key);
      }
      return reader;
    }
  }
}
