// Scans of the format objcat as Spark's own readers do them. The data source in Python is told of no columns, and what it is told of filters
// Spark then keeps for all other queries of the same frame: see docs/decisions/0046-the-format-pushes-nothing-down.md. So a rule puts the
// native plan of the same table and slot in its place: filters, columns, buckets and bounds are what they are elsewhere, and no Python worker
// runs. Compiled by the Janino that Spark ships, as ObjcatFileIndex is; Python is asked while a query is planned. No lambdas, no diamonds, no
// generics of its own.

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import java.util.function.BiFunction;
import java.util.function.Supplier;

import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.plans.logical.Command;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructField;

public class ObjcatFormat {
  static final String NAME = "objcat";

  /** Gives sessions the rule. One object for each JVM, which Python holds. */
  public static class Rules {
    /** python: takes a data source of the format, pickled, and a schema, see format.py; null takes the rule away again. */
    public void install(org.apache.spark.sql.classic.SparkSession session, BiFunction python) {
      synchronized (session.experimental()) {
        scala.collection.immutable.Seq had = session.experimental().extraOptimizations();
        List rules = new ArrayList();
        // First, because the other rules look at its result.
        if (python != null) rules.add(new Native(python));
        for (int r = 0; r < had.size(); r++) if (!(had.apply(r) instanceof Native)) rules.add(had.apply(r));
        session.experimental().extraOptimizations_$eq(PythonUtils.toSeq(rules));
      }
    }
  }

  public static class Native extends Rule {
    private final BiFunction python;
    /** By the data source of a frame, what makes its rows, always of the same slot; FALSE for one that Python workers read. */
    private final Map found = new WeakHashMap();

    Native(BiFunction python) { this.python = python; }

    public String ruleName() { return "ObjcatFormat"; }

    public org.apache.spark.sql.catalyst.trees.TreeNode apply(org.apache.spark.sql.catalyst.trees.TreeNode plan) {
      if (plan instanceof Command) return plan;
      LogicalPlan made = replaced((LogicalPlan) plan);
      if (made == plan) return plan;
      // Filters and columns are pushed down again: below them was nothing.
      org.apache.spark.sql.classic.SparkSession session = (org.apache.spark.sql.classic.SparkSession) ((Object) org.apache.spark.sql.classic.SparkSession$.MODULE$.active());
      return session.sessionState().optimizer().execute(made);
    }

    private LogicalPlan replaced(LogicalPlan plan) {
      if (plan instanceof DataSourceV2ScanRelation) return rows((DataSourceV2ScanRelation) plan);
      List children = new ArrayList();
      boolean same = true;
      for (int c = 0; c < plan.children().size(); c++) {
        LogicalPlan child = (LogicalPlan) plan.children().apply(c), made = replaced(child);
        same = same && made == child;
        children.add(made);
      }
      return same ? plan : (LogicalPlan) ((Object) plan.withNewChildren(PythonUtils.toSeq(children)));
    }

    private LogicalPlan rows(DataSourceV2ScanRelation scan) {
      if (!(scan.relation().table() instanceof PythonTable) || !NAME.equalsIgnoreCase(((PythonTable) scan.relation().table()).name())) return scan;
      Object known = known(scan);
      if (!(known instanceof Supplier)) return scan;
      Object frame = ((Supplier) known).get();
      if (frame == null) return scan;
      LogicalPlan plan = ((org.apache.spark.sql.classic.Dataset) frame).queryExecution().analyzed();
      if (plan.output().size() != scan.output().size()) return scan;
      List columns = new ArrayList();
      for (int c = 0; c < scan.output().size(); c++) {
        Attribute wanted = (Attribute) scan.output().apply(c), has = (Attribute) plan.output().apply(c);
        if (!wanted.name().equals(has.name()) || !wanted.dataType().equals(has.dataType())) return scan;
        columns.add(new Alias(has, wanted.name(), wanted.exprId(), wanted.qualifier(), scala.Option.apply(wanted.metadata()), PythonUtils.toSeq(new ArrayList())));
      }
      return new Project(PythonUtils.toSeq(columns), plan);
    }

    private synchronized Object known(DataSourceV2ScanRelation scan) {
      PythonTable table = (PythonTable) scan.relation().table();
      PythonDataSourceV2 source;
      try {
        Field field = PythonTable.class.getDeclaredField("ds");
        field.setAccessible(true);
        source = (PythonDataSourceV2) field.get(table);
      } catch (ReflectiveOperationException e) {
        return Boolean.FALSE;
      }
      Object known = found.get(source);
      if (known == null) {
        byte[] pickled = source.getOrCreateDataSourceInPython(NAME, scan.relation().options(), scala.Option.apply(table.schema())).dataSource();
        known = python.apply(pickled, table.schema().json());
        found.put(source, known == null ? Boolean.FALSE : known);
      }
      return known;
    }
  }
}
