// Filters in the place of the joins of a merge, where keys are whole numbers close together: rows of base files are kept whose key no log
// row has, and log rows whose key no later one has. What is left out is a set of bits, one for each row that may be. Other joins of many
// base rows get a set of bits in front: a row whose key hashes to none that a log row has need not be looked for.
// objcat/spark/native.py hands this source to the Janino that Spark itself ships. Only the driver loads these classes; what executors run is
// Spark's own. Janino wants plain Java: no lambdas, no diamonds, no generics of its own.

import java.io.Closeable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadFactory;

import org.apache.hadoop.fs.FileStatus;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.planning.PhysicalOperation;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.FileStatusWithMetadata;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.types.*;

public class ObjcatBits {
  // The names are those of objcat/spark/merge.py, the options those of native.py.
  static final String KEY = "_objcat_key_0", OWN_KEY = "_objcat_own_key_0", RANK = "_objcat_rank", THEIR_RANK = "_objcat_their_rank", PLACE = "_objcat_place";
  static final String LOW = "objcat.key.low", HIGH = "objcat.key.high", ROWS = "objcat.base.rows", LOG_ROWS = "objcat.log.rows";
  static final long BITS_MAX = 1L << 29;
  /** Base rows for each log row from which a set of hashes is worth it. */
  static final long GATED_SHARE = 4;
  static final int GATE_BITS_OF_KEY = 8, GATE_SEED = 20261;

  /** Gives sessions the rule. One object for each JVM, which Python holds. */
  public static class Rules {
    /** Once for each session. */
    public void install(org.apache.spark.sql.classic.SparkSession session) {
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
   * Runs last in the optimizer, when filters have found their places: one on the key has reached the log rows too. Reads their keys, as
   * Spark's broadcast of them would.
   */
  public static class WithoutKeys extends Rule {
    public String ruleName() { return "ObjcatWithoutKeys"; }

    public TreeNode apply(TreeNode plan) { return changed((LogicalPlan) plan, new ArrayList()); }

    /** known: the keys that were read for this plan, so that those of the same log rows are read once. */
    private static LogicalPlan changed(LogicalPlan plan, List known) {
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

    private static LogicalPlan without(Join join, List known) {
      LogicalPlan result = filtered(join, known);
      return result == join ? gated(join, known) : result;
    }

    private static LogicalPlan filtered(Join join, List known) {
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
      if (theirs.name().equals(OWN_KEY)) return withoutBeaten(join, rows, Keys.of(logs, theirs, rank, known), key, mine);
      HadoopFsRelation files = relation(rows);
      // Every log row is later than any base row: the key alone decides.
      if (files == null || !files.options().contains(LOW)) return join;
      long low = Long.parseLong((String) files.options().apply(LOW)), high = Long.parseLong((String) files.options().apply(HIGH));
      return new Filter(isNotIn(Keys.of(logs, theirs, rank, known).between(low, high), key), rows);
    }

    /** Log rows against each other: the rows that are beaten are known by now. */
    private static LogicalPlan withoutBeaten(Join join, LogicalPlan rows, Keys keys, Expression key, Expression rank) {
      if (!keys.areDense()) return join;
      Bits beaten = keys.beaten();
      if (beaten == null) return rows;
      Expression place = plus(plus(number(key, LongType$.MODULE$), literal(-keys.low)), times(number(rank, LongType$.MODULE$), keys.width));
      return new Filter(isNotIn(beaten, place), rows);
    }

    /**
     * A join of base rows in which those have no key whose hash no log row's key has. A row without a key is kept, or left out, as one that
     * finds nothing, and is not looked for.
     */
    private static LogicalPlan gated(Join join, List known) {
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
      conjuncts.set(first, new EqualTo(new If(isNotIn(gate, place.toAttribute()), new Literal(null, key.dataType()), key), (Expression) theirs.get(0)));
      Expression condition = (Expression) conjuncts.get(0);
      for (int q = 1; q < conjuncts.size(); q++) condition = new And(condition, (Expression) conjuncts.get(q));
      return new Project(before, new Join(new Project(PythonUtils.toSeq(columns), rows), logs, join.joinType(), scala.Option.apply(condition), join.hint()));
    }

    static Alias alias(Expression value, String name) {
      scala.collection.immutable.Seq none = PythonUtils.toSeq(new ArrayList());
      return new Alias(value, name, NamedExpression$.MODULE$.newExprId(), none, scala.Option.apply(null), none);
    }

    private static Expression hash(List of) { return new Murmur3Hash(PythonUtils.toSeq(of), GATE_SEED); }

    /** Types of which equal values have equal hashes. */
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

    private static Expression isNotIn(Bits bits, Expression key) {
      Expression at = number(key, LongType$.MODULE$);
      if (bits.low != 0) at = plus(at, literal(-bits.low));
      Expression word = new GetArrayItem(bits.subquery(), number(new ShiftRight(at, new Literal(Integer.valueOf(6), IntegerType$.MODULE$)), IntegerType$.MODULE$), false);
      // A shift of a long goes by the last six bits of its distance.
      Expression bit = new BitwiseAnd(word, new ShiftLeft(literal(1L), number(at, IntegerType$.MODULE$)));
      // Beyond the words, Spark finds null.
      return new EqualTo(new Coalesce(PythonUtils.toSeq(Arrays.asList(new Expression[] {bit, literal(0L)}))), literal(0L));
    }

    private static Expression plus(Expression left, Expression right) { return Add$.MODULE$.apply(left, right, EvalMode$.MODULE$.LEGACY()); }

    private static Expression times(Expression left, long right) { return Multiply$.MODULE$.apply(left, literal(right), EvalMode$.MODULE$.LEGACY()); }

    private static Expression number(Expression e, DataType type) { return e.dataType().equals(type) ? e : Cast$.MODULE$.apply(e, type, false); }

    private static Expression literal(long value) { return new Literal(Long.valueOf(value), LongType$.MODULE$); }
  }

  /**
   * The files that a plan reads, with nothing between it and them that leaves rows out: then the driver reads their keys by itself, with
   * Spark's reader, which takes a few milliseconds where a job is planned and compiled in a hundred.
   */
  static class Files {
    static final int COUNT_MAX = 128, THREADS_MAX = 16;
    static final long PIECE_BYTES_MIN = 1L << 20;

    private HadoopFsRelation relation;
    private StructType required;
    private scala.collection.immutable.Seq chosen, input;
    private List pieces;

    /** Null where a job has to read them. */
    static Files of(LogicalPlan plan) {
      scala.Option found = PhysicalOperation.unapply(plan);
      if (found.isEmpty()) return null;
      scala.Tuple3 parts = (scala.Tuple3) found.get();
      if (!(parts._3() instanceof LogicalRelation) || !(((LogicalRelation) parts._3()).relation() instanceof HadoopFsRelation)) return null;
      if (!((HadoopFsRelation) ((Object) ((LogicalRelation) parts._3()).relation())).options().contains(LOG_ROWS)) return null;
      scala.collection.immutable.Seq filters = (scala.collection.immutable.Seq) parts._2();
      // A null key is no key.
      for (int q = 0; q < filters.size(); q++) if (!(filters.apply(q) instanceof IsNotNull)) return null;
      Files result = new Files();
      result.relation = (HadoopFsRelation) ((Object) ((LogicalRelation) parts._3()).relation());
      result.chosen = (scala.collection.immutable.Seq) parts._1();
      result.bind(((LogicalRelation) parts._3()).output());
      result.pieces = result.cut();
      return result.pieces.size() > COUNT_MAX ? null : result;
    }

    /** Which columns are read, and the attributes of the rows that come: those, and the constants of a file. */
    private void bind(scala.collection.immutable.Seq output) {
      StructType data = relation.dataSchema();
      List fields = new ArrayList(), attributes = new ArrayList();
      for (int a = 0; a < output.size(); a++) {
        boolean used = a >= data.length();
        for (int e = 0; !used && e < chosen.size(); e++) used = ((Expression) chosen.apply(e)).references().contains((Attribute) output.apply(a));
        if (used) attributes.add(output.apply(a));
        if (used && a < data.length()) fields.add(data.fields()[a]);
      }
      required = new StructType((StructField[]) fields.toArray(new StructField[0]));
      input = PythonUtils.toSeq(attributes);
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
          session, relation.dataSchema(), relation.partitionSchema(), required, PythonUtils.toSeq(new ArrayList()), said, session.sessionState().newHadoopConfWithOptions(said));
      ExecutorService threads = Executors.newFixedThreadPool(Math.min(pieces.size(), Math.max(cores(), THREADS_MAX)), new Daemons());
      try {
        List found = new ArrayList();
        for (int p = 0; p < pieces.size(); p++) found.add(threads.submit(new Piece(this, reader, session, (PartitionedFile) pieces.get(p))));
        List read = new ArrayList();
        for (int p = 0; p < pieces.size(); p++) read.add(((Future) found.get(p)).get());
        for (int p = 0; p < pieces.size(); p++) keys.addAll((Keys) read.get(p));
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
          result.addAll((scala.collection.Iterator) rows, UnsafeProjection.create(files.chosen, files.input));
        } finally {
          if (rows instanceof Closeable) ((Closeable) rows).close();
        }
        return result;
      }
    }
  }

  /** The keys of some log rows, each with the rank of its row; as many as a broadcast would hold. */
  static class Keys {
    private LogicalPlan of;
    private long[] keys = new long[1024];
    private int[] ranks = new int[1024];
    private int count;
    /** The least key, how many there may be up to the greatest (negative: too many to count), and the least and the greatest rank. */
    long low, width, first, last;

    /** Of the rows of a plan. Runs a job where files are not all there is to read, unless the keys are known. */
    static Keys of(LogicalPlan logs, Attribute key, Attribute rank, List known) {
      LogicalPlan plan = chosen(logs, new Expression[] {WithoutKeys.number(key, LongType$.MODULE$), WithoutKeys.number(rank, IntegerType$.MODULE$)});
      return of(plan, Files.of(plan), true, known);
    }

    /** Of the rows of a plan: numbers in the place of keys, without ranks. Null where they are more, or where that needs a job. */
    static Keys ofFiles(LogicalPlan logs, Expression number, long countMax, List known) {
      Expression[] columns = {WithoutKeys.number(number, LongType$.MODULE$), new Literal(Integer.valueOf(0), IntegerType$.MODULE$)};
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
    private static Keys of(LogicalPlan plan, Files files, boolean byJob, List known) {
      for (int k = 0; k < known.size(); k++) if (((LogicalPlan) ((Object) ((Keys) known.get(k)).of.canonicalized())).equals(plan.canonicalized())) return (Keys) known.get(k);
      Keys result = new Keys();
      result.of = plan;
      if (!result.read(files, byJob)) return null;
      known.add(result);
      return result;
    }

    private boolean read(Files files, boolean byJob) {
      if (files == null || !files.addTo(this)) {
        if (!byJob) return false;
        Object session = org.apache.spark.sql.classic.SparkSession$.MODULE$.active();
        addAll((scala.collection.Iterator) org.apache.spark.sql.classic.Dataset$.MODULE$
            .ofRows((org.apache.spark.sql.classic.SparkSession) session, of).queryExecution().executedPlan().executeCollectIterator()._2(), null);
      }
      if (count == 0) return true;
      long high = keys[0];
      low = high;
      first = last = ranks[0];
      for (int k = 1; k < count; k++) {
        low = Math.min(low, keys[k]);
        high = Math.max(high, keys[k]);
        first = Math.min(first, ranks[k]);
        last = Math.max(last, ranks[k]);
      }
      width = high - low + 1;
      return true;
    }

    /** projection: what makes a key and a rank of a row; null for rows that are both. */
    void addAll(scala.collection.Iterator rows, UnsafeProjection projection) {
      while (rows.hasNext()) {
        InternalRow row = (InternalRow) rows.next();
        if (projection != null) row = projection.apply(row);
        if (row.isNullAt(0)) continue;
        reserve(1);
        keys[count] = row.getLong(0);
        ranks[count++] = row.getInt(1);
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
    Bits between(long low, long high) {
      Bits all = new Bits(low, high);
      for (int k = 0; k < count; k++) if (keys[k] >= low && keys[k] <= high) all.add(keys[k]);
      return all.trimmed();
    }

    /** Whether a bit for each key and rank that may be is little: then `place` numbers them. */
    boolean areDense() { return count == 0 || width > 0 && width < BITS_MAX && width * (last - first + 1) < BITS_MAX; }

    private long place(int k) { return keys[k] - low + ranks[k] * width; }

    /** The places of rows whose key a row of a greater rank has; null when there are none. */
    Bits beaten() {
      if (count == 0) return null;
      Bits later = new Bits(0, width - 1), found = new Bits(first * width, (last + 1) * width - 1);
      int[] order = byRank();
      boolean any = false;
      for (int end = count; end > 0; ) {
        int start = end;
        while (start > 0 && ranks[order[start - 1]] == ranks[order[end - 1]]) {
          int k = order[--start];
          if (!later.has(keys[k] - low)) continue;
          found.add(place(k));
          any = true;
        }
        for (int i = start; i < end; i++) later.add(keys[order[i]] - low);
        end = start;
      }
      return any ? found.trimmed() : null;
    }

    /** The rows in the order of their ranks. */
    private int[] byRank() {
      int[] next = new int[(int) (last - first) + 2];
      for (int k = 0; k < count; k++) next[(int) (ranks[k] - first) + 1]++;
      for (int r = 1; r < next.length; r++) next[r] += next[r - 1];
      int[] order = new int[count];
      for (int k = 0; k < count; k++) order[next[(int) (ranks[k] - first)]++] = k;
      return order;
    }
  }

  /** A set of whole numbers: `low + 64 * w + b` is in it when bit b of word w is set. */
  static class Bits {
    long low;
    private long[] words;

    Bits(long low, long high) {
      this.low = low;
      words = new long[(int) ((high - low) >> 6) + 1];
    }

    void add(long key) { words[(int) ((key - low) >> 6)] |= 1L << (int) (key - low); }

    boolean has(long key) { return (words[(int) ((key - low) >> 6)] & 1L << (int) (key - low)) != 0; }

    /** Without what is empty at both ends. */
    Bits trimmed() {
      int first = 0, end = words.length;
      while (end > 0 && words[end - 1] == 0) end--;
      while (first < end && words[first] == 0) first++;
      words = Arrays.copyOfRange(words, first, end);
      low += 64L * first;
      return this;
    }

    /** The words, as what Spark sends to executors with the plan; plans that hold it stay short. */
    Expression subquery() {
      Object column = new AttributeReference(
          "keys", new ArrayType(LongType$.MODULE$, false), false, Metadata$.MODULE$.empty(), NamedExpression$.MODULE$.newExprId(), PythonUtils.toSeq(new ArrayList()));
      Object row = new GenericInternalRow(new Object[] {UnsafeArrayData.fromPrimitiveArray(words)});
      LogicalPlan relation = new LocalRelation(
          PythonUtils.toSeq(Arrays.asList(new Object[] {column})), PythonUtils.toSeq(Arrays.asList(new Object[] {row})), false, scala.Option.apply(null));
      scala.collection.immutable.Seq none = PythonUtils.toSeq(new ArrayList());
      return new ScalarSubquery(
          relation, none, NamedExpression$.MODULE$.newExprId(), none, scala.Option.apply(null), scala.Option.apply(null), scala.Option.apply(null));
    }
  }
}
