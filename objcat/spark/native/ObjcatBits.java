// Replaces the joins of a merge by filters, where keys are whole numbers close together. A base row is kept if no log row has its key, and a
// log row if no later log row has its key. The rows to leave out are a set of bits, with one bit for each possible row. Other joins of many
// base rows get such a filter in front: a row whose key has the hash of no log row's key does not enter the join.
// objcat/spark/native/relation.py hands this source to the Janino that Spark itself ships. Only the driver loads these classes; what executors run is
// Spark's own. Janino wants plain Java: no lambdas, no diamonds, no generics of its own.

import java.io.Closeable;
import java.lang.ref.SoftReference;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadFactory;
import java.util.function.Consumer;

import org.apache.hadoop.fs.FileStatus;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.planning.PhysicalOperation;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.DataSourceStrategy$;
import org.apache.spark.sql.execution.datasources.FileStatusWithMetadata;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.types.*;

public class ObjcatBits {
  // The names are those of objcat/spark/native/merge.py and snapshot.py, the options those of relation.py.
  static final String KEY = "_objcat_key_0", OWN_KEY = "_objcat_own_key_0", RANK = "_objcat_rank", THEIR_RANK = "_objcat_their_rank", PLACE = "_objcat_place", START = "_objcat_start";
  static final String LOW = "objcat.key.low", HIGH = "objcat.key.high", ROWS = "objcat.base.rows", LOG_ROWS = "objcat.log.rows";
  static final long BITS_MAX = 1L << 29;
  /** From so many base rows for each log row on, a set of hashes pays. */
  static final long GATED_SHARE = 4;
  static final int GATE_BITS_OF_KEY = 8, GATE_SEED = 20261;

  /** Gives sessions the rule. One object for each JVM, which Python holds. */
  public static class Rules implements Consumer {
    /** Once for each session. */
    public void accept(Object given) {
      org.apache.spark.sql.classic.SparkSession session = (org.apache.spark.sql.classic.SparkSession) given;
      synchronized (session.experimental()) {
        scala.collection.immutable.Seq had = session.experimental().extraOptimizations();
        List rules = new ArrayList();
        for (int r = 0; r < had.size(); r++) {
          if (had.apply(r) instanceof WithoutKeys) return;
          rules.add(had.apply(r));
        }
        rules.add(new WithoutKeys());
        session.experimental().extraOptimizations_$eq(PythonUtils.toSeq(rules));
      }
    }
  }

  /**
   * Runs last in the optimizer, when all filters are pushed down: a filter on the key has reached the log rows too. It reads the keys of the
   * log rows, as Spark's broadcast of them would.
   */
  public static class WithoutKeys extends Rule {
    public String ruleName() { return "ObjcatWithoutKeys"; }

    public TreeNode apply(TreeNode plan) { return changed((LogicalPlan) plan, new HashMap()); }

    /** known: the keys that were read for this plan, so that the keys of the same log rows are read once. */
    private static LogicalPlan changed(LogicalPlan plan, Map known) {
      scala.collection.immutable.Seq children = plan.children();
      List made = new ArrayList();
      boolean same = true;
      for (int c = 0; c < children.size(); c++) {
        LogicalPlan child = changed((LogicalPlan) children.apply(c), known);
        same = same && child == children.apply(c);
        made.add(child);
      }
      LogicalPlan result = same ? plan : (LogicalPlan) ((Object) plan.withNewChildren(PythonUtils.toSeq(made)));
      return result instanceof Join ? without((Join) result, known) : result;
    }

    private static LogicalPlan without(Join join, Map known) {
      LogicalPlan result = filtered(join, known);
      return result == join ? gated(join, known) : result;
    }

    private static LogicalPlan filtered(Join join, Map known) {
      LogicalPlan rows = (LogicalPlan) join.children().apply(0), logs = (LogicalPlan) join.children().apply(1);
      if (!"LeftAnti".equals(join.joinType().toString()) || join.condition().isEmpty()) return join;
      List conjuncts = new ArrayList();
      split((Expression) join.condition().get(), conjuncts);
      Expression key = null;
      Attribute theirs = null, rank = null, mine = null;
      for (int q = 0; q < conjuncts.size(); q++) {
        Expression one = (Expression) conjuncts.get(q);
        if (!(one instanceof BinaryComparison)) return join;
        Expression left = (Expression) one.children().apply(0), right = (Expression) one.children().apply(1);
        if (one instanceof GreaterThan && isNamed(left, THEIR_RANK) && isNamed(right, RANK)) {
          rank = (Attribute) left;
          mine = (Attribute) right;
        } else if (one instanceof LessThan && isNamed(left, RANK) && isNamed(right, THEIR_RANK)) {
          rank = (Attribute) right;
          mine = (Attribute) left;
        }
        else if (one instanceof EqualTo && key == null && (isKey(left) || isKey(right))) {
          key = isKey(left) ? right : left;
          theirs = (Attribute) (isKey(left) ? left : right);
        } else return join;
      }
      if (key == null || rank == null || !(theirs.dataType() instanceof IntegralType) || !key.references().subsetOf(rows.outputSet())) return join;
      if (theirs.name().equals(OWN_KEY)) return withoutSuperseded(join, Keys.of(logs, theirs, rank, known), mine);
      HadoopFsRelation files = relation(rows);
      // Every log row is later than any base row: the key alone decides.
      if (files == null || !files.options().contains(LOW)) return join;
      long low = Long.parseLong((String) files.options().apply(LOW)), high = Long.parseLong((String) files.options().apply(HIGH));
      return Keys.of(logs, theirs, rank, known).between(low, high).without(key, rows);
    }

    /** The log rows that no later log row supersedes. Each row has a rank of its own. */
    private static LogicalPlan withoutSuperseded(Join join, Keys keys, Expression rank) {
      if (!keys.areDense()) return join;
      LogicalPlan rows = (LogicalPlan) join.children().apply(0);
      if (keys.holders != null && isWithin(rows, (LogicalPlan) join.children().apply(1))) rows = ofFiles(rows, keys.holders);
      Bits superseded = keys.superseded();
      return superseded == null ? rows : superseded.without(rank, rows);
    }

    /** Whether a row of files passes the filters of some rows, whose keys are `keys`, only if it passes those of the keys: no key is null. */
    private static boolean isWithin(LogicalPlan rows, LogicalPlan keys) {
      scala.Option mine = PhysicalOperation.unapply(rows), theirs = PhysicalOperation.unapply(keys);
      if (mine.isEmpty() || theirs.isEmpty()) return false;
      scala.Tuple3 parts = (scala.Tuple3) mine.get(), others = (scala.Tuple3) theirs.get();
      if (!(parts._3() instanceof LogicalRelation) || !(others._3() instanceof LogicalRelation)) return false;
      if (!((LogicalRelation) parts._3()).relation().equals(((LogicalRelation) others._3()).relation())) return false;
      scala.collection.immutable.Seq own = (scala.collection.immutable.Seq) parts._2(), asked = (scala.collection.immutable.Seq) others._2();
      scala.collection.immutable.Seq named = (scala.collection.immutable.Seq) others._1();
      AttributeSet key = null;
      for (int e = 0; e < named.size(); e++) if (OWN_KEY.equals(((NamedExpression) named.apply(e)).name())) key = ((Expression) named.apply(e)).references();
      List texts = new ArrayList();
      for (int q = 0; q < own.size(); q++) texts.add(((Expression) own.apply(q)).sql());
      for (int q = 0; q < asked.size(); q++) {
        Expression one = (Expression) asked.apply(q);
        boolean always = one instanceof IsNotNull && key != null && one.references().subsetOf(key);
        if (!always && !texts.contains(one.sql())) return false;
      }
      return true;
    }

    /** Rows of log objects, of those alone whose numbers begin where one of these says. */
    private static LogicalPlan ofFiles(LogicalPlan rows, List starts) {
      if (rows instanceof LogicalRelation) {
        for (int a = 0; a < rows.output().size(); a++) {
          if (!isNamed((Expression) rows.output().apply(a), START)) continue;
          List wanted = new ArrayList();
          for (int h = 0; h < starts.size(); h++) wanted.add(literal(((Long) starts.get(h)).longValue()));
          // None begins below 0.
          if (wanted.isEmpty()) wanted.add(literal(-1L));
          return new Filter(new In((Expression) rows.output().apply(a), PythonUtils.toSeq(wanted)), rows);
        }
        return rows;
      }
      List of = new ArrayList();
      of.add(ofFiles((LogicalPlan) rows.children().apply(0), starts));
      return (LogicalPlan) ((Object) rows.withNewChildren(PythonUtils.toSeq(of)));
    }

    /**
     * The join, into which only base rows go whose key has the hash of a log row's key. The other rows, and those whose key is null, are kept or
     * left out like rows that find no partner.
     */
    private static LogicalPlan gated(Join join, Map known) {
      LogicalPlan rows = (LogicalPlan) join.children().apply(0), logs = (LogicalPlan) join.children().apply(1);
      String type = join.joinType().toString();
      HadoopFsRelation files = relation(rows);
      if (files == null || join.condition().isEmpty() || !type.equals("LeftAnti") && !type.equals("LeftSemi")) return join;
      long count = Long.parseLong((String) files.options().apply(ROWS));
      if (count == 0) return join;
      List conjuncts = new ArrayList(), mine = new ArrayList(), theirs = new ArrayList();
      split((Expression) join.condition().get(), conjuncts);
      int first = -1;
      for (int q = 0; q < conjuncts.size(); q++) {
        if (!(conjuncts.get(q) instanceof EqualTo)) continue;
        Expression left = (Expression) ((EqualTo) conjuncts.get(q)).children().apply(0), right = (Expression) ((EqualTo) conjuncts.get(q)).children().apply(1);
        if (!startsAsKey(left) && !startsAsKey(right)) continue;
        Expression own = startsAsKey(left) ? right : left, other = startsAsKey(left) ? left : right;
        if (own instanceof If || !isHashed(own.dataType()) || !own.dataType().equals(other.dataType()) || !own.references().subsetOf(rows.outputSet())) return join;
        if (first < 0) first = q;
        mine.add(own);
        theirs.add(other);
      }
      if (first < 0) return join;
      Keys hashes = Keys.ofFiles(logs, hash(theirs), count / GATED_SHARE, known);
      if (hashes == null || hashes.count == 0) return join;
      int bits = Integer.highestOneBit(Math.max(64, hashes.count * GATE_BITS_OF_KEY - 1)) << 1;
      Bits gate = new Bits(0, bits - 1);
      for (int k = 0; k < hashes.count; k++) gate.add(hashes.keys[k] & bits - 1);
      // Below the join, where it is computed once: in the join, once for the word and once for the bit.
      Alias place = alias(new BitwiseAnd(hash(mine), new Literal(Integer.valueOf(bits - 1), IntegerType$.MODULE$)), PLACE);
      List columns = new ArrayList();
      for (int c = 0; c < rows.output().size(); c++) columns.add(rows.output().apply(c));
      scala.collection.immutable.Seq before = PythonUtils.toSeq(new ArrayList(columns));
      columns.add(place);
      Expression key = (Expression) mine.get(0);
      conjuncts.set(first, new EqualTo(new If(gate.lacks(place.toAttribute()), new Literal(null, key.dataType()), key), (Expression) theirs.get(0)));
      Expression condition = (Expression) conjuncts.get(0);
      for (int q = 1; q < conjuncts.size(); q++) condition = new And(condition, (Expression) conjuncts.get(q));
      return new Project(before, new Join(new Project(PythonUtils.toSeq(columns), rows), logs, join.joinType(), scala.Option.apply(condition), join.hint()));
    }

    static Alias alias(Expression value, String name) {
      scala.collection.immutable.Seq none = PythonUtils.toSeq(new ArrayList());
      return new Alias(value, name, NamedExpression$.MODULE$.newExprId(), none, scala.Option.apply(null), none);
    }

    private static Expression hash(List of) { return new Murmur3Hash(PythonUtils.toSeq(of), GATE_SEED); }

    /** Types whose equal values have equal hashes. */
    private static boolean isHashed(DataType type) {
      boolean plain = type instanceof IntegralType || type instanceof DecimalType || type.equals(StringType$.MODULE$) || type.equals(BinaryType$.MODULE$);
      return plain || type.equals(DateType$.MODULE$) || type.equals(TimestampType$.MODULE$) || type.equals(TimestampNTZType$.MODULE$) || type.equals(BooleanType$.MODULE$);
    }

    private static boolean startsAsKey(Expression e) {
      return e instanceof AttributeReference && ((AttributeReference) e).name().startsWith(KEY.substring(0, KEY.length() - 1));
    }

    /** The base files below filters and projections; else null. */
    private static HadoopFsRelation relation(LogicalPlan plan) {
      while (plan instanceof Project || plan instanceof Filter) plan = (LogicalPlan) plan.children().apply(0);
      if (!(plan instanceof LogicalRelation)) return null;
      Object relation = ((LogicalRelation) plan).relation();
      return relation instanceof HadoopFsRelation && ((HadoopFsRelation) relation).options().contains(ROWS) ? (HadoopFsRelation) relation : null;
    }

    private static boolean isKey(Expression e) { return isNamed(e, KEY) || isNamed(e, OWN_KEY); }

    private static boolean isNamed(Expression e, String name) { return e instanceof AttributeReference && ((AttributeReference) e).name().equals(name); }

    private static void split(Expression e, List into) {
      if (e instanceof And) {
        split((Expression) e.children().apply(0), into);
        split((Expression) e.children().apply(1), into);
      } else into.add(e);
    }

    static Expression plus(Expression left, Expression right) { return Add$.MODULE$.apply(left, right, EvalMode$.MODULE$.LEGACY()); }

    static Expression number(Expression e, DataType type) { return e.dataType().equals(type) ? e : Cast$.MODULE$.apply(e, type, false); }

    static Expression literal(long value) { return new Literal(Long.valueOf(value), LongType$.MODULE$); }
  }

  /**
   * The files that a plan reads, with nothing between it and them that leaves rows out: then the driver reads their keys by itself, with
   * Spark's reader, which takes a few milliseconds where a job is planned and compiled in a hundred.
   */
  static class Files {
    static final int COUNT_MAX = 128, THREADS_MAX = 16, KEPT_MIN = 1024;
    static final long PIECE_BYTES_MIN = 1L << 20;

    private HadoopFsRelation relation;
    private StructType required;
    private List chosen = new ArrayList();
    /** The filter that rows must pass; null for all rows. */
    private Expression passing;
    /** The same filter for Spark's reader, which skips pages and row groups by it. */
    private List pushed = new ArrayList();
    private scala.collection.immutable.Seq input;
    private List pieces;

    /** Null where a job has to read them. */
    static Files of(LogicalPlan plan) {
      scala.Option found = PhysicalOperation.unapply(plan);
      if (found.isEmpty()) return null;
      scala.Tuple3 parts = (scala.Tuple3) found.get();
      if (!(parts._3() instanceof LogicalRelation) || !(((LogicalRelation) parts._3()).relation() instanceof HadoopFsRelation)) return null;
      if (!((HadoopFsRelation) ((Object) ((LogicalRelation) parts._3()).relation())).options().contains(LOG_ROWS)) return null;
      scala.collection.immutable.Seq filters = (scala.collection.immutable.Seq) parts._2();
      for (int q = 0; q < filters.size(); q++) if (!canBeEvaluated((Expression) filters.apply(q))) return null;
      Files result = new Files();
      result.relation = (HadoopFsRelation) ((Object) ((LogicalRelation) parts._3()).relation());
      result.bind((scala.collection.immutable.Seq) parts._1(), filters, ((LogicalRelation) parts._3()).output());
      result.pieces = result.cut();
      return result.pieces.size() > COUNT_MAX ? null : result;
    }

    /** Not where Spark has to ask for something first, such as the answer of a subquery, or the worker of a Python function. */
    private static boolean canBeEvaluated(Expression e) {
      if (e instanceof Attribute) return true;
      if (e instanceof Unevaluable || e instanceof PlanExpression || !e.deterministic() || e.stateful()) return false;
      for (int c = 0; c < e.children().size(); c++) if (!canBeEvaluated((Expression) e.children().apply(c))) return false;
      return true;
    }

    /** Which columns are read, and the attributes of the rows that come: those, and the constants of a file. */
    private void bind(scala.collection.immutable.Seq expressions, scala.collection.immutable.Seq filters, scala.collection.immutable.Seq output) {
      Attribute row = new AttributeReference(
          ParquetFileFormat.ROW_INDEX_TEMPORARY_COLUMN_NAME(), LongType$.MODULE$, false, Metadata$.MODULE$.empty(), NamedExpression$.MODULE$.newExprId(), PythonUtils.toSeq(new ArrayList()));
      for (int e = 0; e < expressions.size(); e++) chosen.add(counted((Expression) expressions.apply(e), row));
      for (int q = 0; q < filters.size(); q++) {
        Expression one = counted((Expression) filters.apply(q), row);
        // A null key is no key. The caller leaves such rows out.
        if (one instanceof IsNotNull && one.references().subsetOf(((Expression) chosen.get(0)).references())) continue;
        passing = passing == null ? one : new And(passing, one);
        scala.Option said = DataSourceStrategy$.MODULE$.translateFilter(one, true);
        if (said.isDefined()) pushed.add(said.get());
      }
      StructType data = relation.dataSchema();
      int constants = relation.partitionSchema().length();
      List fields = new ArrayList(), attributes = new ArrayList();
      for (int a = 0; a < data.length(); a++) {
        if (!isUsed((Attribute) output.apply(a))) continue;
        attributes.add(output.apply(a));
        fields.add(data.fields()[a]);
      }
      if (isUsed(row)) {
        attributes.add(row);
        // Spark's reader refuses a column that files do not have, unless it may be null.
        fields.add(new StructField(row.name(), row.dataType(), true, Metadata$.MODULE$.empty()));
      }
      for (int a = data.length(); a < data.length() + constants; a++) attributes.add(output.apply(a));
      required = new StructType((StructField[]) fields.toArray(new StructField[0]));
      input = PythonUtils.toSeq(attributes);
    }

    private boolean isUsed(Attribute attribute) {
      for (int e = 0; e < chosen.size(); e++) if (((Expression) chosen.get(e)).references().contains(attribute)) return true;
      return passing != null && passing.references().contains(attribute);
    }

    /** An expression with the number of a row in its file as the column under which Spark's reader gives it. */
    private static Expression counted(Expression e, Attribute row) {
      if (e instanceof GetStructField && isMetadata(((GetStructField) e).child()) && ParquetFileFormat.ROW_INDEX().equals(((GetStructField) e).extractFieldName())) return row;
      List children = new ArrayList();
      boolean same = true;
      for (int c = 0; c < e.children().size(); c++) {
        Expression child = (Expression) e.children().apply(c), made = counted(child, row);
        same = same && made == child;
        children.add(made);
      }
      return same ? e : (Expression) ((Object) e.withNewChildren(PythonUtils.toSeq(children)));
    }

    private static boolean isMetadata(Expression e) {
      return e instanceof AttributeReference && FileSourceMetadataAttribute$.MODULE$.unapply((AttributeReference) e).isDefined();
    }

    /** Ranges of the files, a few for each core; Spark's reader reads the row groups that begin in one. */
    private List cut() {
      long bytes = Math.max(PIECE_BYTES_MIN, relation.location().sizeInBytes() / cores() + 1);
      List result = new ArrayList();
      scala.collection.immutable.Seq none = PythonUtils.toSeq(new ArrayList()), directories = relation.location().listFiles(none, none);
      for (int d = 0; d < directories.size(); d++) {
        PartitionDirectory directory = (PartitionDirectory) directories.apply(d);
        for (int f = 0; f < directory.files().size(); f++) {
          FileStatus file = ((FileStatusWithMetadata) directory.files().apply(f)).fileStatus();
          for (long start = 0; start < file.getLen(); start += bytes)
            result.add(new PartitionedFile(
                directory.values(), org.apache.spark.paths.SparkPath.fromFileStatus(file), start, Math.min(bytes, file.getLen() - start), new String[0],
                file.getModificationTime(), file.getLen(), PythonUtils.toScalaMap(new HashMap())));
        }
      }
      return result;
    }

    /** The key of the cache for the files and what is read of them: files never change. Null where a filter leaves rows out that may not be known by its text. */
    String name() {
      if (passing != null && !isKnownByText(passing)) return null;
      StringBuilder result = new StringBuilder(required.json());
      for (int e = 0; e < chosen.size(); e++) result.append('\n').append(((Expression) chosen.get(e)).sql());
      if (passing != null) result.append("\nwhere ").append(passing.sql());
      for (int p = 0; p < pieces.size(); p++) {
        PartitionedFile piece = (PartitionedFile) pieces.get(p);
        result.append('\n').append(piece.urlEncodedPath()).append(' ').append(piece.start()).append(' ').append(piece.partitionValues());
      }
      return result.toString();
    }

    /** Filters of ours that compare ordering values or name rows. No time zone and no setting changes what they mean, as it may for those of users. */
    private static boolean isKnownByText(Expression e) {
      if (e instanceof Literal && !(e.dataType() instanceof IntegralType)) return false;
      // Of a cast to fewer bits, a setting says whether it fails.
      if (e instanceof Cast && !(((Cast) e).child().dataType() instanceof IntegralType && e.dataType().equals(LongType$.MODULE$))) return false;
      boolean plain = e instanceof And || e instanceof Or || e instanceof Not || e instanceof In || e instanceof InSet || e instanceof IsNull || e instanceof IsNotNull || e instanceof BinaryComparison;
      if (!plain && !(e instanceof Attribute || e instanceof Literal || e instanceof Cast || e instanceof UnixMicros || e instanceof UnixDate)) return false;
      for (int c = 0; c < e.children().size(); c++) if (!isKnownByText((Expression) e.children().apply(c))) return false;
      return true;
    }

    /** Whether the keys are worth a place in the cache. Those that a filter of a lookup leaves are few, and read fast. */
    boolean isKept(int count) { return passing == null || count >= KEPT_MIN; }

    /** Of the rows that come; null for all. Interpreted: a query's own literals would be compiled for it each time. */
    BasePredicate predicate() {
      if (passing == null) return null;
      BasePredicate made = new InterpretedPredicate((Expression) ((Object) BindReferences$.MODULE$.bindReference(passing, new package$AttributeSeq(input), false)));
      made.initialize(0);
      return made;
    }

    /** How many log rows they hold. */
    long rows() { return Long.parseLong((String) relation.options().apply(LOG_ROWS)); }

    private static int cores() { return Runtime.getRuntime().availableProcessors(); }

    /** False where a file could not be read: Spark's job will say why. */
    boolean addTo(Keys keys) {
      if (pieces.isEmpty()) return true;
      Map options = new HashMap();
      for (scala.collection.Iterator it = relation.options().iterator(); it.hasNext(); ) {
        scala.Tuple2 pair = (scala.Tuple2) it.next();
        options.put(pair._1(), pair._2());
      }
      options.put("returning_batch", "false");
      scala.collection.immutable.Map said = PythonUtils.toScalaMap(options);
      org.apache.spark.sql.classic.SparkSession session = (org.apache.spark.sql.classic.SparkSession) ((Object) relation.sparkSession());
      scala.Function1 reader = relation.fileFormat().buildReaderWithPartitionValues(
          session, relation.dataSchema(), relation.partitionSchema(), required, PythonUtils.toSeq(pushed), said, session.sessionState().newHadoopConfWithOptions(said));
      ExecutorService threads = Executors.newFixedThreadPool(Math.min(pieces.size(), Math.max(cores(), THREADS_MAX)), new Daemons());
      try {
        List found = new ArrayList();
        for (int p = 0; p < pieces.size(); p++) found.add(threads.submit(new Piece(this, reader, session, (PartitionedFile) pieces.get(p))));
        List read = new ArrayList();
        for (int p = 0; p < pieces.size(); p++) read.add(((Future) found.get(p)).get());
        for (int p = 0; p < pieces.size(); p++) keys.addAll((Keys) read.get(p));
        if (passing != null) keys.holders = holders(read);
        return true;
      } catch (ExecutionException e) {
        return false;
      } catch (InterruptedException e) {
        org.apache.spark.unsafe.Platform.throwException(e);
        return false;
      } finally {
        threads.shutdownNow();
      }
    }

    /** Where the numbers of the rows of a file begin, of each file of which a row passed. read: of each piece, its keys. */
    private List holders(List read) {
      int start = relation.partitionSchema().fieldIndex(START);
      List result = new ArrayList();
      for (int p = 0; p < pieces.size(); p++) {
        Long of = Long.valueOf(((PartitionedFile) pieces.get(p)).partitionValues().getLong(start));
        if (((Keys) read.get(p)).count > 0 && !result.contains(of)) result.add(of);
      }
      return result;
    }

    static class Daemons implements ThreadFactory {
      public Thread newThread(Runnable work) {
        Thread result = new Thread(work, "objcat-keys");
        result.setDaemon(true);
        return result;
      }
    }

    static class Piece implements Callable {
      private final Files files;
      private final scala.Function1 reader;
      private final org.apache.spark.sql.classic.SparkSession session;
      private final PartitionedFile file;

      Piece(Files files, scala.Function1 reader, org.apache.spark.sql.classic.SparkSession session, PartitionedFile file) {
        this.files = files;
        this.reader = reader;
        this.session = session;
        this.file = file;
      }

      public Object call() throws Exception {
        org.apache.spark.sql.classic.SparkSession$.MODULE$.setActiveSession(session);
        Keys result = new Keys();
        Object rows = reader.apply(file);
        try {
          result.addAll((scala.collection.Iterator) rows, files.predicate(), UnsafeProjection.create(PythonUtils.toSeq(files.chosen), files.input));
        } finally {
          if (rows instanceof Closeable) ((Closeable) rows).close();
        }
        return result;
      }
    }
  }

  /** The keys of some log rows, each with the rank of its row, or of its object; as many as a broadcast would hold. */
  static class Keys {
    private long[] keys = new long[1024];
    private long[] ranks = new long[1024];
    private int count;
    /** Of rows that passed a filter, the files that hold them, see `Files.holders`; null where it may be any. */
    private List holders;
    /** The least and the greatest key and rank. */
    private long low, high, first, last;
    /** What was found of them before: `all` is those between `allFrom` and `allTo`. */
    private Bits all, superseded;
    private long allFrom, allTo;

    /** Of the rows of a plan. Runs a job where files are not all there is to read, unless the keys are known. */
    static Keys of(LogicalPlan logs, Attribute key, Attribute rank, Map known) {
      LogicalPlan plan = chosen(logs, new Expression[] {WithoutKeys.number(key, LongType$.MODULE$), WithoutKeys.number(rank, LongType$.MODULE$)});
      return of(plan, Files.of(plan), true, known);
    }

    /** Of the rows of a plan: numbers in the place of keys, without ranks. Null where they are more, or where that needs a job. */
    static Keys ofFiles(LogicalPlan logs, Expression number, long countMax, Map known) {
      Expression[] columns = {WithoutKeys.number(number, LongType$.MODULE$), WithoutKeys.literal(0L)};
      LogicalPlan plan = chosen(logs, columns);
      Files files = Files.of(plan);
      return files == null || files.rows() > countMax ? null : of(plan, files, false, known);
    }

    private static LogicalPlan chosen(LogicalPlan logs, Expression[] columns) {
      List chosen = new ArrayList();
      for (int c = 0; c < columns.length; c++) chosen.add(WithoutKeys.alias(columns[c], c == 0 ? KEY : THEIR_RANK));
      return new Project(PythonUtils.toSeq(chosen), logs);
    }

    /** files: of the plan, null where only a job can read them. Null where a job would have to and may not. */
    private static Keys of(LogicalPlan plan, Files files, boolean byJob, Map known) {
      Object canonical = plan.canonicalized();
      Keys result = (Keys) known.get(canonical);
      if (result != null) return result;
      String name = files == null ? null : files.name();
      result = name == null ? null : (Keys) Cache.get(name);
      if (result == null) {
        result = new Keys();
        if (files != null && files.addTo(result)) {
          result.measure();
          if (name != null && files.isKept(result.count)) Cache.put(name, result);
        } else if (byJob) {
          result.addJob(plan);
          result.measure();
        } else return null;
      }
      known.put(canonical, result);
      return result;
    }

    private void addJob(LogicalPlan plan) {
      Object session = org.apache.spark.sql.classic.SparkSession$.MODULE$.active();
      addAll((scala.collection.Iterator) org.apache.spark.sql.classic.Dataset$.MODULE$
          .ofRows((org.apache.spark.sql.classic.SparkSession) session, plan).queryExecution().executedPlan().executeCollectIterator()._2(), null, null);
    }

    private void measure() {
      if (count == 0) return;
      low = high = keys[0];
      first = last = ranks[0];
      for (int k = 1; k < count; k++) {
        low = Math.min(low, keys[k]);
        high = Math.max(high, keys[k]);
        first = Math.min(first, ranks[k]);
        last = Math.max(last, ranks[k]);
      }
    }

    /** passing: of which rows, null for all. projection: what makes a key and a rank of a row; null for rows that are both. */
    void addAll(scala.collection.Iterator rows, BasePredicate passing, UnsafeProjection projection) {
      while (rows.hasNext()) {
        InternalRow row = (InternalRow) rows.next();
        if (passing != null && !passing.eval(row)) continue;
        if (projection != null) row = projection.apply(row);
        if (row.isNullAt(0)) continue;
        reserve(1);
        keys[count] = row.getLong(0);
        ranks[count++] = row.getLong(1);
      }
    }

    void addAll(Keys others) {
      reserve(others.count);
      System.arraycopy(others.keys, 0, keys, count, others.count);
      System.arraycopy(others.ranks, 0, ranks, count, others.count);
      count += others.count;
    }

    private void reserve(int more) {
      if (count + more <= keys.length) return;
      keys = Arrays.copyOf(keys, Math.max(2 * count, count + more));
      ranks = Arrays.copyOf(ranks, keys.length);
    }

    /** Those between two numbers. */
    synchronized Bits between(long low, long high) {
      if (all != null && allFrom == low && allTo == high) return all;
      allFrom = low;
      allTo = high;
      low = Math.max(low, this.low);
      high = Math.min(high, this.high);
      all = new Bits(low, count == 0 ? low : Math.max(low, high));
      for (int k = 0; k < count; k++) if (keys[k] >= low && keys[k] <= high) all.add(keys[k]);
      return all = all.trimmed();
    }

    /** Whether a bit for each possible key and a number for each possible rank take little memory. */
    boolean areDense() { return count == 0 || isWithin(low, high) && isWithin(first, last); }

    private static boolean isWithin(long low, long high) { return high - low >= 0 && high - low < BITS_MAX; }

    /** The ranks of rows whose key a row of a greater rank has; null for no rows. No two rows have one rank. */
    synchronized Bits superseded() {
      if (superseded != null || count == 0) return superseded;
      long[] rows = new long[count];
      for (int k = 0; k < count; k++) rows[k] = ranks[k] - first << 31 | k;
      Arrays.sort(rows);
      Bits later = new Bits(low, high), found = new Bits(first, last);
      for (int r = count - 1; r >= 0; r--) {
        int k = (int) rows[r] & Integer.MAX_VALUE;
        if (later.has(keys[k])) found.add(ranks[k]);
        else later.add(keys[k]);
      }
      return superseded = found.trimmed();
    }
  }

  /** The keys of the newest queries, while the JVM has memory to spare: the next query often reads the same log. */
  static class Cache {
    static final int COUNT_MAX = 16;
    private static final LinkedHashMap FOUND = new LinkedHashMap(16, 0.75f, true);

    static Object get(String name) {
      synchronized (FOUND) {
        SoftReference found = (SoftReference) FOUND.get(name);
        return found == null ? null : found.get();
      }
    }

    static void put(String name, Object keys) {
      synchronized (FOUND) {
        FOUND.put(name, new SoftReference(keys));
        if (FOUND.size() <= COUNT_MAX) return;
        java.util.Iterator oldest = FOUND.keySet().iterator();
        oldest.next();
        oldest.remove();
      }
    }
  }

  /**
   * Words as a row with one array. Spark orders what it compares by hashes of whole plans, and would hash all the words several times for
   * each query: they are the same words only where it is the same row.
   */
  static class Words extends GenericInternalRow {
    Words(long[] words) { super(new Object[] {UnsafeArrayData.fromPrimitiveArray(words)}); }

    public int hashCode() { return System.identityHashCode(this); }

    public boolean equals(Object other) { return this == other; }
  }

  /** A set of whole numbers: `low + 64 * w + b` is in it when bit b of word w is set. */
  static class Bits {
    /** From so many words on, empty words are left out: a lookup costs more then, and less is sent. */
    static final int SPARSE_WORDS_MIN = 1 << 21;
    /** Up to so many numbers are listed one by one: a subquery takes some milliseconds, and Spark plans around it. */
    static final int NAMED_MAX = 16;
    private final Map rows = new IdentityHashMap();
    private long low;
    private long[] words, blocks, full;

    Bits(long low, long high) {
      this.low = low;
      words = new long[(int) ((high - low) >> 6) + 1];
    }

    void add(long key) { words[(int) ((key - low) >> 6)] |= 1L << (int) (key - low); }

    boolean has(long key) { return (words[(int) ((key - low) >> 6)] & 1L << (int) (key - low)) != 0; }

    /** Without the empty words at both ends. */
    Bits trimmed() {
      int first = 0, end = words.length;
      while (end > 0 && words[end - 1] == 0) end--;
      while (first < end && words[first] == 0) first++;
      words = Arrays.copyOfRange(words, first, end);
      low += 64L * first;
      return this;
    }

    /** The rows whose number is not in the set; null is not in it. */
    LogicalPlan without(Expression number, LogicalPlan rows) {
      if (words.length == 0) return rows;
      List named = named();
      if (named == null) return new Filter(lacks(number), rows);
      Expression is = new In(WithoutKeys.number(number, LongType$.MODULE$), PythonUtils.toSeq(named));
      return new Filter(new Not(new Coalesce(PythonUtils.toSeq(Arrays.asList(new Expression[] {is, new Literal(Boolean.FALSE, BooleanType$.MODULE$)})))), rows);
    }

    /** All numbers of the set; null where they are many. */
    private List named() {
      List result = new ArrayList();
      for (int w = 0; w < words.length; w++)
        for (long left = words[w]; left != 0; left &= left - 1) {
          if (result.size() == NAMED_MAX) return null;
          result.add(WithoutKeys.literal(low + 64L * w + Long.numberOfTrailingZeros(left)));
        }
      return result;
    }

    /**
     * Whether a number is not in the set; null is not. The words go to executors as a subquery of their own, once for each task: plans that
     * hold them stay short, and a large set without the words that are empty.
     */
    Expression lacks(Expression number) {
      Expression at = WithoutKeys.number(number, LongType$.MODULE$);
      if (low != 0) at = WithoutKeys.plus(at, WithoutKeys.literal(-low));
      // Beyond the words, Spark finds null. A shift of a long goes by the last six bits of its distance.
      if (words.length < SPARSE_WORDS_MIN) return isZero(new BitwiseAnd(item(subquery(words), shifted(at, 6)), bit(at)));
      pack();
      Expression all = subquery(blocks), word = bit(shifted(at, 6)), block = new BitwiseAnd(shifted(at, 11), WithoutKeys.literal(-2L));
      Expression filled = item(all, block), start = item(all, WithoutKeys.plus(block, WithoutKeys.literal(1L)));
      Expression before = new BitwiseCount(new BitwiseAnd(filled, WithoutKeys.plus(word, WithoutKeys.literal(-1L))));
      Expression place = WithoutKeys.plus(start, WithoutKeys.number(before, LongType$.MODULE$));
      return new Or(isZero(new BitwiseAnd(filled, word)), isZero(new BitwiseAnd(item(subquery(full), place), bit(at))));
    }

    /** Of each block of 64 words: which are not empty, and where those begin among the full ones. */
    private synchronized void pack() {
      if (full != null) return;
      int used = 0;
      for (int w = 0; w < words.length; w++) if (words[w] != 0) used++;
      long[] kept = new long[used];
      blocks = new long[2 * ((words.length + 63) >> 6)];
      for (int w = 0, next = 0; w < words.length; w++) {
        int block = w >> 6 << 1;
        if ((w & 63) == 0) blocks[block + 1] = next;
        if (words[w] == 0) continue;
        blocks[block] |= 1L << w;
        kept[next++] = words[w];
      }
      full = kept;
    }

    private static Expression shifted(Expression at, int by) { return new ShiftRight(at, new Literal(Integer.valueOf(by), IntegerType$.MODULE$)); }

    /** A long with one bit. */
    private static Expression bit(Expression number) { return new ShiftLeft(WithoutKeys.literal(1L), WithoutKeys.number(number, IntegerType$.MODULE$)); }

    private static Expression item(Expression array, Expression at) { return new GetArrayItem(array, WithoutKeys.number(at, IntegerType$.MODULE$), false); }

    private static Expression isZero(Expression e) {
      return new EqualTo(new Coalesce(PythonUtils.toSeq(Arrays.asList(new Expression[] {e, WithoutKeys.literal(0L)}))), WithoutKeys.literal(0L));
    }

    private synchronized Expression subquery(long[] words) {
      scala.collection.immutable.Seq none = PythonUtils.toSeq(new ArrayList());
      Object column = new AttributeReference("keys", new ArrayType(LongType$.MODULE$, false), false, Metadata$.MODULE$.empty(), NamedExpression$.MODULE$.newExprId(), none);
      Object row = rows.get(words);
      if (row == null) rows.put(words, row = new Words(words));
      LogicalPlan relation = new LocalRelation(
          PythonUtils.toSeq(Arrays.asList(new Object[] {column})), PythonUtils.toSeq(Arrays.asList(new Object[] {row})), false, scala.Option.apply(null));
      return new ScalarSubquery(
          relation, none, NamedExpression$.MODULE$.newExprId(), none, scala.Option.apply(null), scala.Option.apply(null), scala.Option.apply(null));
    }
  }
}
