// Filters in the place of the joins of a merge, where keys are whole numbers close together: rows of base files are kept whose key no log
// row has, and log rows whose key no later one has. What is left out is a set of bits, one for each row that may be.
// objcat/spark/native.py hands this source to the Janino that Spark itself ships. Only the driver loads these classes; what executors run is
// Spark's own. Janino wants plain Java: no lambdas, no diamonds, no generics of its own.

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.types.*;

public class ObjcatBits {
  // The names are those of objcat/spark/merge.py, the options those of native.py.
  static final String KEY = "_objcat_key_0", OWN_KEY = "_objcat_own_key_0", RANK = "_objcat_rank", THEIR_RANK = "_objcat_their_rank";
  static final String LOW = "objcat.key.low", HIGH = "objcat.key.high";
  static final long BITS_MAX = 1L << 29;

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
   * Runs last in the optimizer, when filters have found their places: one on the key has reached the log rows too. Reads their keys with a
   * job of its own, as Spark's broadcast of them would.
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
      LogicalPlan rows = (LogicalPlan) join.children().apply(0), logs = (LogicalPlan) join.children().apply(1);
      if (!"LeftAnti".equals(join.joinType().toString()) || join.condition().isEmpty()) return join;
      List conjuncts = new ArrayList();
      split((Expression) join.condition().get(), conjuncts);
      Expression key = null;
      Attribute theirs = null, rank = null, mine = null;
      for (int q = 0; q < conjuncts.size(); q++) {
        Expression one = (Expression) conjuncts.get(q), left = (Expression) one.children().apply(0), right = (Expression) one.children().apply(1);
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
      if (files == null) return join;
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

    /** The base files below filters and projections, which say between what their keys are; else null. */
    private static HadoopFsRelation relation(LogicalPlan plan) {
      while (plan instanceof Project || plan instanceof Filter) plan = (LogicalPlan) plan.children().apply(0);
      if (!(plan instanceof LogicalRelation)) return null;
      Object relation = ((LogicalRelation) plan).relation();
      return relation instanceof HadoopFsRelation && ((HadoopFsRelation) relation).options().contains(LOW) ? (HadoopFsRelation) relation : null;
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

  /** The keys of some log rows, each with the rank of its row; as many as a broadcast would hold. */
  static class Keys {
    private LogicalPlan of;
    private long[] keys = new long[1024];
    private int[] ranks = new int[1024];
    private int count;
    /** The least key, how many there may be up to the greatest (negative: too many to count), and the least and the greatest rank. */
    long low, width, first, last;

    /** Of the rows of a plan. Runs a job, unless the keys are known. */
    static Keys of(LogicalPlan logs, Attribute key, Attribute rank, List known) {
      Expression[] columns = {WithoutKeys.number(key, LongType$.MODULE$), WithoutKeys.number(rank, IntegerType$.MODULE$)};
      List chosen = new ArrayList();
      for (int c = 0; c < columns.length; c++)
        chosen.add(new Alias(
            columns[c], c == 0 ? KEY : THEIR_RANK, NamedExpression$.MODULE$.newExprId(),
            PythonUtils.toSeq(new ArrayList()), scala.Option.apply(null), PythonUtils.toSeq(new ArrayList())));
      LogicalPlan plan = new Project(PythonUtils.toSeq(chosen), logs);
      for (int k = 0; k < known.size(); k++) if (((LogicalPlan) ((Object) ((Keys) known.get(k)).of.canonicalized())).equals(plan.canonicalized())) return (Keys) known.get(k);
      Keys result = new Keys();
      result.of = plan;
      result.read();
      known.add(result);
      return result;
    }

    private void read() {
      Object session = org.apache.spark.sql.classic.SparkSession$.MODULE$.active();
      scala.collection.Iterator found = (scala.collection.Iterator) org.apache.spark.sql.classic.Dataset$.MODULE$
          .ofRows((org.apache.spark.sql.classic.SparkSession) session, of).queryExecution().executedPlan().executeCollectIterator()._2();
      while (found.hasNext()) {
        InternalRow row = (InternalRow) found.next();
        if (row.isNullAt(0)) continue;
        if (count == keys.length) {
          keys = Arrays.copyOf(keys, 2 * count);
          ranks = Arrays.copyOf(ranks, 2 * count);
        }
        keys[count] = row.getLong(0);
        ranks[count++] = row.getInt(1);
      }
      if (count == 0) return;
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
