// Base files lie in the order of the key, and a bucket is often one file. A merge join of such buckets, or a window, need not sort them.
// Spark itself trusts no file to be sorted, so a strategy of ours puts a sort of our own below the join. When it runs, it passes rows on if
// they come unchanged from such files; otherwise it sorts like any other sort. So a rule that changes the plan in between cannot make the
// result wrong. objcat/spark/native/query.py hands this source to the Janino that Spark ships. Only the driver
// loads these classes: to executors a plain sort is sent in the place of ours. Janino wants plain Java: no lambdas, no diamonds, no generics.

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.Consumer;

import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.catalog.BucketSpec;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenContext;
import org.apache.spark.sql.catalyst.expressions.codegen.ExprCode;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.execution.CodegenSupport;
import org.apache.spark.sql.execution.ColumnarToRowExec;
import org.apache.spark.sql.execution.FileSourceScanExec;
import org.apache.spark.sql.execution.FilterExec;
import org.apache.spark.sql.execution.InputAdapter;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SortExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkPlanner;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.joins.SortMergeJoinExec;
import org.apache.spark.sql.execution.window.WindowExec;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;

public class ObjcatOrder {
  /** The option of relation.py: a JSON array of columns by which the one file of each bucket ascends. */
  static final String SORTED = "objcat.sorted";

  /** Gives sessions the strategy. One object for each JVM, which Python holds. */
  public static class Rules implements Consumer {
    /** Once for each session. */
    public void accept(Object given) {
      org.apache.spark.sql.classic.SparkSession session = (org.apache.spark.sql.classic.SparkSession) given;
      synchronized (session.experimental()) {
        scala.collection.immutable.Seq had = session.experimental().extraStrategies();
        List all = new ArrayList();
        for (int s = 0; s < had.size(); s++) {
          if (had.apply(s) instanceof InOrder) return;
          all.add(had.apply(s));
        }
        all.add(new InOrder());
        session.experimental().extraStrategies_$eq(PythonUtils.toSeq(all));
      }
    }
  }

  static List sorted(HadoopFsRelation relation) {
    if (!relation.options().contains(SORTED)) return new ArrayList();
    try {
      return (List) new ObjectMapper().readValue((String) relation.options().apply(SORTED), List.class);
    } catch (java.io.IOException e) {
      throw new RuntimeException(e);
    }
  }

  /** Merge joins and windows as Spark plans them, with sorts of ours below. */
  public static class InOrder extends SparkStrategy {
    public scala.collection.immutable.Seq apply(LogicalPlan plan) {
      SQLConf conf = SQLConf$.MODULE$.get();
      // Where Spark may read several buckets as one, it looks for scans right below a join.
      if (!conf.bucketingEnabled() || conf.coalesceBucketsInJoinEnabled()) return none();
      if (plan instanceof Join) return ofJoin((Join) plan);
      return plan instanceof Window ? ofWindow((Window) plan, conf) : none();
    }

    private static scala.collection.immutable.Seq none() { return PythonUtils.toSeq(new ArrayList()); }

    private static SparkPlanner planner() {
      return ((org.apache.spark.sql.classic.SparkSession) ((Object) org.apache.spark.sql.classic.SparkSession$.MODULE$.active())).sessionState().planner();
    }

    private static scala.collection.immutable.Seq ofJoin(Join join) {
      Side left = Side.of((LogicalPlan) join.children().apply(0)), right = Side.of((LogicalPlan) join.children().apply(1));
      if (left == null || right == null || left.order.isEmpty() && right.order.isEmpty()) return none();
      scala.collection.immutable.Seq planned = planner().JoinSelection().apply(join);
      if (planned.isEmpty() || !(planned.apply(0) instanceof SortMergeJoinExec)) return none();
      SortMergeJoinExec merge = (SortMergeJoinExec) planned.apply(0);
      List mine = ids(merge.leftKeys()), theirs = ids(merge.rightKeys());
      if (mine == null || theirs == null) return none();
      left.useFor(mine);
      right.useFor(theirs);
      // Of two that lie by the key, Spark keeps the one in more buckets; of as many, if they agree column by column.
      boolean agree = left.count == right.count && left.places(mine).equals(right.places(theirs));
      boolean first = !left.order.isEmpty() && left.count > 0 && (right.count < left.count || agree);
      boolean second = !right.order.isEmpty() && right.count > 0 && (left.count < right.count || agree);
      if (!first && !second) return none();
      List children = new ArrayList();
      children.add(first ? left.sort((SparkPlan) merge.children().apply(0)) : merge.children().apply(0));
      children.add(second ? right.sort((SparkPlan) merge.children().apply(1)) : merge.children().apply(1));
      return one((SparkPlan) ((Object) merge.withNewChildren(PythonUtils.toSeq(children))));
    }

    private static scala.collection.immutable.Seq ofWindow(Window window, SQLConf conf) {
      Side side = Side.of((LogicalPlan) window.children().apply(0));
      List by = ids(window.partitionSpec());
      if (side == null || side.order.isEmpty() || by == null || !by.containsAll(side.buckets)) return none();
      boolean whole = "true".equals(conf.getConfString("spark.sql.requireAllClusterKeysForDistribution", "false"));
      if (whole && by.size() != side.buckets.size()) return none();
      scala.collection.immutable.Seq planned = planner().Window().apply(window);
      if (planned.isEmpty() || !(planned.apply(0) instanceof WindowExec)) return none();
      WindowExec found = (WindowExec) planned.apply(0);
      if (!SortOrder.orderingSatisfies(side.orders(), (scala.collection.immutable.Seq) found.requiredChildOrdering().apply(0))) return none();
      List children = new ArrayList();
      children.add(side.sort((SparkPlan) found.children().apply(0)));
      return one((SparkPlan) ((Object) found.withNewChildren(PythonUtils.toSeq(children))));
    }

    private static scala.collection.immutable.Seq one(SparkPlan plan) {
      List found = new ArrayList();
      found.add(plan);
      return PythonUtils.toSeq(found);
    }

    /** Null where one is computed. */
    private static List ids(scala.collection.immutable.Seq expressions) {
      List found = new ArrayList();
      for (int e = 0; e < expressions.size(); e++) {
        if (!(expressions.apply(e) instanceof Attribute)) return null;
        found.add(((Attribute) expressions.apply(e)).exprId());
      }
      return found;
    }
  }

  /** Rows of a join: what is known of how they lie. Of plans that may lie in any way, which is told when they have been planned, none. */
  static class Side {
    /** Buckets, 0 for none. */
    int count;
    /** The ids of the columns of the buckets. */
    List buckets = new ArrayList();
    /** Columns by which each bucket ascends. */
    List order = new ArrayList();

    static Side of(LogicalPlan plan) {
      if (plan instanceof Filter) return of((LogicalPlan) plan.children().apply(0));
      if (plan instanceof Project) {
        Side side = of((LogicalPlan) plan.children().apply(0));
        if (side != null) side.rename(((Project) plan).projectList());
        return side;
      }
      if (plan instanceof Union) {
        Side side = of((LogicalPlan) plan.children().apply(0));
        if (side == null) return null;
        side.order = new ArrayList();
        side.rename(((LogicalPlan) plan.children().apply(0)).output(), plan.output());
        return side;
      }
      if (!plan.children().isEmpty()) return null;
      Side side = new Side();
      if (!(plan instanceof LogicalRelation) || !(((LogicalRelation) plan).relation() instanceof HadoopFsRelation)) return side;
      HadoopFsRelation relation = (HadoopFsRelation) ((Object) ((LogicalRelation) plan).relation());
      if (relation.bucketSpec().isEmpty()) return side;
      BucketSpec spec = (BucketSpec) relation.bucketSpec().get();
      side.count = spec.numBuckets();
      for (int c = 0; c < spec.bucketColumnNames().size(); c++) {
        Attribute column = named(plan.output(), spec.bucketColumnNames().apply(c));
        if (column == null) return new Side();
        side.buckets.add(column.exprId());
      }
      List names = sorted(relation);
      for (int c = 0; c < names.size(); c++) {
        Attribute column = named(plan.output(), names.get(c));
        if (column == null) break;
        side.order.add(column);
      }
      return side;
    }

    private static Attribute named(scala.collection.immutable.Seq output, Object name) {
      for (int a = 0; a < output.size(); a++) if (((Attribute) output.apply(a)).name().equals(name)) return (Attribute) output.apply(a);
      return null;
    }

    private void rename(scala.collection.immutable.Seq expressions) {
      List below = new ArrayList(), above = new ArrayList();
      for (int e = 0; e < expressions.size(); e++) {
        NamedExpression one = (NamedExpression) expressions.apply(e);
        Object of = one instanceof Alias ? ((Alias) one).children().apply(0) : one;
        if (!(of instanceof Attribute)) continue;
        below.add(of);
        above.add(one.toAttribute());
      }
      rename(PythonUtils.toSeq(below), PythonUtils.toSeq(above));
    }

    private void rename(scala.collection.immutable.Seq below, scala.collection.immutable.Seq above) {
      List ids = new ArrayList(), columns = new ArrayList();
      for (int b = 0; b < buckets.size(); b++) {
        Attribute found = null;
        for (int c = 0; c < below.size(); c++) if (((Attribute) below.apply(c)).exprId().equals(buckets.get(b))) found = (Attribute) above.apply(c);
        if (found == null) {
          count = 0;
          break;
        }
        ids.add(found.exprId());
      }
      for (int o = 0; o < order.size() && columns.size() == o; o++)
        for (int c = 0; c < below.size(); c++)
          if (((Attribute) below.apply(c)).exprId().equals(((Attribute) order.get(o)).exprId())) {
            columns.add(above.apply(c));
            break;
          }
      buckets = ids;
      order = count == 0 ? new ArrayList() : columns;
    }

    /** Nothing is left where these are not the columns of the buckets: Spark will move the rows. */
    void useFor(List keys) {
      if (keys.size() == buckets.size() && keys.containsAll(buckets)) return;
      count = 0;
      order = new ArrayList();
    }

    /** Which of the keys is each column of the buckets. */
    List places(List keys) {
      List found = new ArrayList();
      for (int b = 0; b < buckets.size(); b++) found.add(Integer.valueOf(keys.indexOf(buckets.get(b))));
      return found;
    }

    scala.collection.immutable.Seq orders() {
      List found = new ArrayList();
      for (int o = 0; o < order.size(); o++)
        found.add(new SortOrder((Expression) order.get(o), Ascending$.MODULE$, NullsFirst$.MODULE$, PythonUtils.toSeq(new ArrayList())));
      return PythonUtils.toSeq(found);
    }

    SparkPlan sort(SparkPlan rows) { return new AlreadySorted(orders(), false, rows, 0); }
  }

  /** A sort that has nothing to do where the rows below come from sorted files, each bucket by itself and none of it apart; else it sorts. */
  public static class AlreadySorted extends SortExec {
    private transient SortExec plain;

    public AlreadySorted(scala.collection.immutable.Seq order, boolean global, SparkPlan rows, int testSpillFrequency) {
      super(order, global, rows, testSpillFrequency);
    }

    private SparkPlan rows() { return (SparkPlan) ((Object) children().apply(0)); }
    private synchronized SortExec plain() {
      if (plain == null) plain = new SortExec(sortOrder(), global(), rows(), testSpillFrequency());
      return plain;
    }

    /** Executors know no class of ours. Not private: Janino gives private methods other names. */
    public Object writeReplace() { return plain(); }

    public SortExec withNewChildInternal(SparkPlan rows) { return new AlreadySorted(sortOrder(), global(), rows, testSpillFrequency()); }
    public String nodeName() { return isInOrder() ? "AlreadySorted" : "Sort"; }

    /** By what is really below, when it is asked. */
    boolean isInOrder() {
      List wanted = new ArrayList();
      for (int o = 0; o < sortOrder().size(); o++) {
        SortOrder one = (SortOrder) sortOrder().apply(o);
        if (one.direction() != Ascending$.MODULE$ || !(one.children().apply(0) instanceof Attribute)) return false;
        wanted.add(((Attribute) one.children().apply(0)).exprId());
      }
      SparkPlan below = rows();
      while (!(below instanceof FileSourceScanExec)) {
        if (below instanceof ProjectExec) wanted = below((ProjectExec) below, wanted);
        else if (!(below instanceof FilterExec || below instanceof ColumnarToRowExec || below instanceof InputAdapter || below instanceof WholeStageCodegenExec)) return false;
        if (wanted == null) return false;
        below = (SparkPlan) ((Object) below.children().apply(0));
      }
      FileSourceScanExec scan = (FileSourceScanExec) below;
      if (!scan.bucketedScan() || scan.optionalNumCoalescedBuckets().isDefined()) return false;
      List names = sorted(scan.relation());
      if (wanted.size() > names.size()) return false;
      for (int w = 0; w < wanted.size(); w++) {
        Attribute column = Side.named(scan.output(), names.get(w));
        if (column == null || !column.exprId().equals(wanted.get(w))) return false;
      }
      return true;
    }

    private static List below(ProjectExec project, List wanted) {
      List found = new ArrayList();
      for (int w = 0; w < wanted.size(); w++)
        for (int e = 0; e < project.projectList().size() && found.size() == w; e++) {
          NamedExpression one = (NamedExpression) project.projectList().apply(e);
          Object of = one instanceof Alias ? ((Alias) one).children().apply(0) : one;
          if (one.exprId().equals(wanted.get(w)) && of instanceof Attribute) found.add(((Attribute) of).exprId());
        }
      return found.size() == wanted.size() ? found : null;
    }

    // ---- how it runs

    public boolean needCopyResult() { return isInOrder() && ((CodegenSupport) ((Object) rows())).needCopyResult(); }
    public boolean needStopCheck() { return isInOrder(); }

    public RDD doExecute() { return isInOrder() ? rows().execute() : plain().execute(); }

    public String doProduce(CodegenContext code) { return isInOrder() ? ((CodegenSupport) ((Object) rows())).produce(code, this) : plain().produce(code, this); }
    public String doConsume(CodegenContext code, scala.collection.immutable.Seq columns, ExprCode row) { return consume(code, columns, null); }
  }
}
