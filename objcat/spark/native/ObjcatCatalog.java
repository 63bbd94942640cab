// A lake as a catalog of Spark's SQL, compiled by the Janino that Spark ships, as ObjcatFileIndex is. It knows nothing of tables: it asks
// Python, about a table while a query is analysed, and to write while a command runs. Spark plans a command more than once, for EXPLAIN too, so
// nothing here writes before that. Janino wants plain Java: no lambdas, no diamonds, no generics of its own.

import java.lang.ref.SoftReference;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.BiFunction;
import java.util.regex.Pattern;

import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.analysis.AnalysisContext$;
import org.apache.spark.sql.catalyst.analysis.NamespaceAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.ResolvedIdentifier;
import org.apache.spark.sql.catalyst.analysis.ResolvedNamespace;
import org.apache.spark.sql.catalyst.analysis.ResolvedPartitionSpec;
import org.apache.spark.sql.catalyst.analysis.ResolvedTable;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute;
import org.apache.spark.sql.catalyst.catalog.CatalogStorageFormat$;
import org.apache.spark.sql.catalyst.catalog.CatalogTable$;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.CatalogTableType$;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Cast$;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.GetStructField;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.parser.PositionMapper;
import org.apache.spark.sql.catalyst.plans.logical.Assignment;
import org.apache.spark.sql.catalyst.plans.logical.Command;
import org.apache.spark.sql.catalyst.plans.logical.DeleteAction;
import org.apache.spark.sql.catalyst.plans.logical.DeleteFromTable;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.InsertAction;
import org.apache.spark.sql.catalyst.plans.logical.InsertStarAction;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MergeAction;
import org.apache.spark.sql.catalyst.plans.logical.MergeIntoTable;
import org.apache.spark.sql.catalyst.plans.logical.OverwritePartitionsDynamic;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.ShowPartitions;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.UpdateAction;
import org.apache.spark.sql.catalyst.plans.logical.UpdateStarAction;
import org.apache.spark.sql.catalyst.plans.logical.UpdateTable;
import org.apache.spark.sql.catalyst.plans.logical.WithCTE;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.CurrentOrigin;
import org.apache.spark.sql.catalyst.trees.Origin;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.catalog.*;
import org.apache.spark.sql.connector.catalog.constraints.Constraint;
import org.apache.spark.sql.connector.catalog.constraints.PrimaryKey;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsDynamicOverwrite;
import org.apache.spark.sql.connector.write.SupportsOverwriteV2;
import org.apache.spark.sql.connector.write.V1Write;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.execution.PlanLater;
import org.apache.spark.sql.execution.QueryExecutionException;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Strategy$;
import org.apache.spark.sql.execution.datasources.v2.LeafV2CommandExec;
import org.apache.spark.sql.execution.datasources.v2.V2CommandExec;
import org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2;
import org.apache.spark.sql.execution.streaming.sources.MicroBatchWrite;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.sources.InsertableRelation;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A table that is read is a view for Spark. Its text calls the function `objcat_rows` with the name of the plan that Python has just made. So
 * Spark needs nothing new to resolve it: a view may be read by every query, and its plan may have several relations. A table that is written to
 * is a `Target`, because Spark asks for it by another method.
 */
public class ObjcatCatalog implements StagingTableCatalog, SupportsNamespaces, ProcedureCatalog {
  static final String FUNCTION = "objcat_rows";
  static final int PLANS_MAX = 256;
  static final String CONSTRAINT =
      "A table has no constraints but PRIMARY KEY and NOT NULL of CREATE TABLE. Nothing was done. Check rows before you write them, or ALTER COLUMN ... DROP NOT NULL.";
  private static final Pattern CHECK = Pattern.compile("\\s*ALTER\\s+TABLE\\s+\\S+\\s+ADD\\s+(CONSTRAINT\\s+\\S+\\s+)?CHECK\\b", Pattern.CASE_INSENSITIVE);
  /** In the names of the classes of Spark that let a statement WITH SCHEMA EVOLUTION change its table. */
  private static final String EVOLVING = "SchemaEvolution$";
  private static final Map plans = new Plans();
  private static long made = 0;

  private String name;
  private org.apache.spark.sql.classic.SparkSession session;
  private BiFunction python;
  /** Of the statement that a thread analyses: the columns that its table will have. */
  private final ThreadLocal grown = new ThreadLocal();

  public void initialize(String name, CaseInsensitiveStringMap options) { this.name = name; }
  public String name() { return name; }
  public String[] defaultNamespace() { return new String[0]; }

  public Set capabilities() {
    Set found = new HashSet();
    found.add(TableCatalogCapability.SUPPORT_COLUMN_DEFAULT_VALUE);
    found.add(TableCatalogCapability.SUPPORT_TABLE_CONSTRAINT);
    return found;
  }

  // ---- tables

  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    Map answer = (Map) ask("tables", dotted(namespace, null));
    if (answer.containsKey("missing")) throw new NoSuchNamespaceException(qualified(namespace));
    List names = (List) answer.get("names");
    Identifier[] found = new Identifier[names.size()];
    for (int i = 0; i < found.length; i++) found[i] = Identifier.of(namespace, (String) names.get(i));
    return found;
  }

  public boolean tableExists(Identifier ident) { return !((Map) ask("exists", dotted(ident))).containsKey("missing"); }
  public Table loadTable(Identifier ident) throws NoSuchTableException {
    // Spark itself ends with an error about its code when it goes on with this statement.
    if (CurrentOrigin.get().sqlText().isDefined() && CHECK.matcher((String) CurrentOrigin.get().sqlText().get()).lookingAt()) throw new IllegalArgumentException(CONSTRAINT);
    return isAsker(".DataStreamWriter") || isAsker(EVOLVING) ? loadTable(ident, (Set) null) : load(ident, null, null);
  }

  public Table loadTable(Identifier ident, String version) throws NoSuchTableException { return load(ident, version, null); }
  public Table loadTable(Identifier ident, long micros) throws NoSuchTableException { return load(ident, null, Long.valueOf(micros)); }
  public Table loadTable(Identifier ident, Set privileges) throws NoSuchTableException {
    Map about = about(ident, true);
    StructType schema = (StructType) grown.get();
    if (schema != null && isAsker(EVOLVING)) {
      about.put("schema", schema.json());
      about.put("grown", Boolean.TRUE);
      grown.remove();
    }
    return new Target(this, ident, about);
  }

  /** Whether a class of Spark asks. Streams ask for a table to write to by the method of reads, and nothing else tells them apart. */
  private static boolean isAsker(String name) {
    StackTraceElement[] calls = Thread.currentThread().getStackTrace();
    for (int c = 0; c < calls.length; c++) if (calls[c].getClassName().contains(name)) return true;
    return false;
  }

  private Table load(Identifier ident, String version, Long micros) throws NoSuchTableException {
    boolean newest = version == null && micros == null;
    scala.collection.mutable.Map known = AnalysisContext$.MODULE$.get().relationCache();
    // Beside Spark's own keys, and as long-lived: a query sees one slot of a table.
    String key = "objcat " + name + "." + dotted(ident);
    LogicalPlan plan = newest && known.contains(key) ? (LogicalPlan) known.apply(key) : null;
    if (plan == null) {
      Map request = request("load", dotted(ident));
      request.put("version", version);
      request.put("micros", micros);
      // A plan depends on them, so Python gives the one that it made before only under the same.
      request.put("settings", session.sessionState().conf().getAllConfs().toString());
      Object answer = ask(request, null);
      if (answer instanceof Map) throw new NoSuchTableException(ident);
      plan = ((org.apache.spark.sql.classic.Dataset) answer).queryExecution().analyzed();
      if (newest) known.put(key, plan);
    }
    String token;
    synchronized (plans) {
      token = "rows " + ++made;
      plans.put(token, new Named(plan, newest ? parts(ident) : null));
    }
    return new Shown(this, ident, view(ident, plan.schema(), "SELECT * FROM " + FUNCTION + "('" + token + "')"));
  }

  /** What Python says of a table. writes: whether it is to be written to. */
  private Map about(Identifier ident, boolean writes) throws NoSuchTableException {
    Map request = request("about", dotted(ident));
    request.put("writes", Boolean.valueOf(writes));
    Map answer = (Map) ask(request, null);
    if (answer.containsKey("missing")) throw new NoSuchTableException(ident);
    return answer;
  }

  /** A view of this catalog, as Spark keeps those of its own. Its versions differ in what else they want to know, which has defaults. */
  private CatalogTable view(Identifier ident, StructType schema, String text) {
    Map properties = new HashMap();
    CatalogTable$ known = CatalogTable$.MODULE$;
    properties.put(known.VIEW_CATALOG_AND_NAMESPACE(), "2");
    properties.put(known.VIEW_CATALOG_AND_NAMESPACE_PART_PREFIX() + "0", "spark_catalog");
    properties.put(known.VIEW_CATALOG_AND_NAMESPACE_PART_PREFIX() + "1", "default");
    properties.put(known.VIEW_REFERRED_TEMP_FUNCTION_NAMES(), "[\"" + FUNCTION + "\"]");
    Map given = new HashMap();
    String database = dotted(ident.namespace(), null);
    given.put(Integer.valueOf(1), new TableIdentifier(ident.name(), scala.Option.apply(database), scala.Option.apply(name)));
    given.put(Integer.valueOf(2), CatalogTableType$.MODULE$.VIEW());
    given.put(Integer.valueOf(3), CatalogStorageFormat$.MODULE$.empty());
    given.put(Integer.valueOf(4), schema);
    given.put(Integer.valueOf(12), PythonUtils.toScalaMap(properties));
    given.put(Integer.valueOf(14), scala.Option.apply(text));
    List parts = new ArrayList(Arrays.asList(qualified(ident.namespace())));
    parts.add(ident.name());
    given.put(Integer.valueOf(22), scala.Option.apply(PythonUtils.toSeq(parts)));
    try {
      Constructor constructor = CatalogTable.class.getConstructors()[0];
      Object[] values = new Object[constructor.getParameterTypes().length];
      for (int i = 1; i <= values.length; i++)
        values[i - 1] = given.containsKey(Integer.valueOf(i))
            ? given.get(Integer.valueOf(i)) : CatalogTable$.class.getMethod("apply$default$" + i, new Class[0]).invoke(known, new Object[0]);
      return (CatalogTable) constructor.newInstance(values);
    } catch (Exception e) {
      throw new RuntimeException(e);
    }
  }

  public Table createTable(Identifier ident, TableInfo info) throws TableAlreadyExistsException {
    Map request = request("create", dotted(ident));
    request.put("table", told(info));
    if (((Map) ask(request, null)).containsKey("exists")) throw new TableAlreadyExistsException(ident);
    return new Staged(this, ident, info, "create");
  }

  public StagedTable stageCreate(Identifier ident, TableInfo info) { return new Staged(this, ident, info, "create"); }
  public StagedTable stageReplace(Identifier ident, TableInfo info) { return new Staged(this, ident, info, "replace"); }
  public StagedTable stageCreateOrReplace(Identifier ident, TableInfo info) { return new Staged(this, ident, info, "create or replace"); }

  public Table alterTable(Identifier ident, TableChange[] changes) throws NoSuchTableException {
    if (isAsker(EVOLVING)) {
      // The statement is being analysed, maybe for EXPLAIN: its columns are added by the commit of its rows.
      StructType schema = (StructType) DataType.fromJson((String) about(ident, true).get("schema"));
      scala.collection.immutable.Seq wanted = PythonUtils.toSeq(new ArrayList(Arrays.asList(changes)));
      grown.set(CatalogV2Util$.MODULE$.applySchemaChanges(schema, wanted, scala.Option.apply(null), "WITH SCHEMA EVOLUTION"));
      return null;
    }
    List told = new ArrayList();
    for (int c = 0; c < changes.length; c++) told.add(told(changes[c]));
    Map request = request("alter", dotted(ident));
    request.put("changes", told);
    try {
      if (((Map) ask(request, null)).containsKey("missing")) throw new NoSuchTableException(ident);
    } catch (IllegalArgumentException e) {
      // Spark would wrap it into an error of its own, which PySpark shows with Java's stack.
      Platform.throwException(new QueryExecutionException(e.getMessage(), null));
    }
    return null;
  }

  public boolean dropTable(Identifier ident) { return !((Map) ask("drop", dotted(ident))).containsKey("missing"); }
  public boolean purgeTable(Identifier ident) { return !((Map) ask("purge", dotted(ident))).containsKey("missing"); }

  public void renameTable(Identifier before, Identifier after) throws NoSuchTableException, TableAlreadyExistsException {
    Map request = request("rename", dotted(before));
    String[] parts = after.namespace();
    // A new name of one part stays in its namespace; the first of several may be the catalog.
    if (parts.length == 0) parts = before.namespace();
    else if (parts[0].equals(name)) parts = (String[]) Arrays.copyOfRange(parts, 1, parts.length);
    request.put("to", dotted(parts, after.name()));
    Map answer = (Map) ask(request, null);
    if (answer.containsKey("missing")) throw new NoSuchTableException(before);
    if (answer.containsKey("exists")) throw new TableAlreadyExistsException(after);
  }

  static Map told(TableInfo info) {
    Map told = new HashMap();
    told.put("schema", info.schema().json());
    told.put("partitions", told(info.partitions()));
    told.put("properties", info.properties());
    told.put("constraints", constraints(info, told));
    return told;
  }

  /** The constraints of a table but for its key, which is told. */
  private static List constraints(TableInfo info, Map told) {
    List others = new ArrayList();
    Constraint[] constraints = info.constraints();
    for (int c = 0; c < constraints.length; c++)
      if (constraints[c] instanceof PrimaryKey) {
        List key = new ArrayList();
        NamedReference[] columns = ((PrimaryKey) constraints[c]).columns();
        for (int k = 0; k < columns.length; k++) key.add(columns[k].fieldNames()[0]);
        told.put("key", key);
      } else others.add(constraints[c].toDDL());
    return others;
  }

  static List told(Expression[] expressions) {
    List told = new ArrayList();
    for (int e = 0; e < expressions.length; e++) told.add(told(expressions[e]));
    return told;
  }

  /** A transform, a condition, a column or a value. */
  static Map told(Expression one) {
    Map told = new HashMap();
    if (one instanceof NamedReference) told.put("column", ((NamedReference) one).fieldNames());
    else if (one instanceof org.apache.spark.sql.connector.expressions.Literal) {
      org.apache.spark.sql.connector.expressions.Literal literal = (org.apache.spark.sql.connector.expressions.Literal) one;
      told.put("type", literal.dataType().simpleString());
      told.put("value", literal.value() == null ? null : literal.value() instanceof byte[] ? hex((byte[]) literal.value()) : literal.value().toString());
    } else {
      told.put("name", one instanceof Predicate ? ((Predicate) one).name() : one instanceof Transform ? ((Transform) one).name() : one.toString());
      told.put("of", told(one instanceof Transform ? ((Transform) one).arguments() : one.children()));
    }
    return told;
  }

  private static String hex(byte[] bytes) {
    StringBuilder found = new StringBuilder();
    for (int b = 0; b < bytes.length; b++) found.append(Character.forDigit((bytes[b] >> 4) & 15, 16)).append(Character.forDigit(bytes[b] & 15, 16));
    return found.toString();
  }

  private static Map told(TableChange change) {
    Map told = new HashMap();
    told.put("change", change.getClass().getSimpleName());
    if (change instanceof TableChange.SetProperty) {
      told.put("name", ((TableChange.SetProperty) change).property());
      told.put("value", ((TableChange.SetProperty) change).value());
    } else if (change instanceof TableChange.RemoveProperty) told.put("name", ((TableChange.RemoveProperty) change).property());
    else if (change instanceof TableChange.ColumnChange) {
      told.put("path", ((TableChange.ColumnChange) change).fieldNames());
      if (change instanceof TableChange.AddColumn) {
        TableChange.AddColumn add = (TableChange.AddColumn) change;
        told.put("type", add.dataType().json());
        told.put("nullable", Boolean.valueOf(add.isNullable()));
        told.put("comment", add.comment());
        told.put("position", told(add.position()));
        if (add.defaultValue() != null) told.put("sql", sql(add.defaultValue()));
      } else if (change instanceof TableChange.RenameColumn) told.put("to", ((TableChange.RenameColumn) change).newName());
      else if (change instanceof TableChange.UpdateColumnType) told.put("type", ((TableChange.UpdateColumnType) change).newDataType().json());
      else if (change instanceof TableChange.UpdateColumnNullability) told.put("nullable", Boolean.valueOf(((TableChange.UpdateColumnNullability) change).nullable()));
      else if (change instanceof TableChange.UpdateColumnPosition) told.put("position", told(((TableChange.UpdateColumnPosition) change).position()));
      else if (change instanceof TableChange.UpdateColumnDefaultValue) told.put("sql", ((TableChange.UpdateColumnDefaultValue) change).newDefaultValue());
      else if (change instanceof TableChange.DeleteColumn) told.put("if exists", ((TableChange.DeleteColumn) change).ifExists());
    }
    return told;
  }

  /** The text of a column's default. Versions of Spark differ in its class, and some define the method in one that is not public. */
  private static Object sql(Object value) {
    try {
      Method method = value.getClass().getMethod("getSql", new Class[0]);
      method.setAccessible(true);
      return method.invoke(value, new Object[0]);
    } catch (Exception e) {
      throw new RuntimeException(e);
    }
  }

  private static Object told(TableChange.ColumnPosition position) {
    if (position == null) return null;
    return position instanceof TableChange.After ? ((TableChange.After) position).column() : "";
  }

  // ---- namespaces

  public String[][] listNamespaces() { return namespaces((Map) ask("namespaces", null), new String[0]); }

  public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
    Map answer = (Map) ask("namespaces", dotted(namespace, null));
    if (answer.containsKey("missing")) throw new NoSuchNamespaceException(qualified(namespace));
    return namespaces(answer, namespace);
  }

  private static String[][] namespaces(Map answer, String[] above) {
    List names = (List) answer.get("names");
    String[][] found = new String[names.size()][];
    for (int i = 0; i < found.length; i++) {
      found[i] = (String[]) Arrays.copyOf(above, above.length + 1);
      found[i][above.length] = (String) names.get(i);
    }
    return found;
  }

  public boolean namespaceExists(String[] namespace) { return !((Map) ask("namespace", dotted(namespace, null))).containsKey("missing"); }

  public Map loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
    Map answer = (Map) ask("namespace", dotted(namespace, null));
    if (answer.containsKey("missing")) throw new NoSuchNamespaceException(qualified(namespace));
    return (Map) answer.get("properties");
  }

  public void createNamespace(String[] namespace, Map properties) throws NamespaceAlreadyExistsException {
    Map request = request("create namespace", dotted(namespace, null));
    request.put("properties", properties);
    if (((Map) ask(request, null)).containsKey("exists")) throw new NamespaceAlreadyExistsException(qualified(namespace));
  }

  public void alterNamespace(String[] namespace, NamespaceChange[] changes) throws NoSuchNamespaceException {
    Map set = new HashMap();
    List unset = new ArrayList();
    for (int c = 0; c < changes.length; c++)
      if (changes[c] instanceof NamespaceChange.SetProperty) set.put(((NamespaceChange.SetProperty) changes[c]).property(), ((NamespaceChange.SetProperty) changes[c]).value());
      else unset.add(((NamespaceChange.RemoveProperty) changes[c]).property());
    Map request = request("alter namespace", dotted(namespace, null));
    request.put("set", set);
    request.put("unset", unset);
    if (((Map) ask(request, null)).containsKey("missing")) throw new NoSuchNamespaceException(qualified(namespace));
  }

  public boolean dropNamespace(String[] namespace, boolean cascade) throws NoSuchNamespaceException {
    if (((Map) ask("drop namespace", dotted(namespace, null))).containsKey("missing")) throw new NoSuchNamespaceException(qualified(namespace));
    return true;
  }

  // ---- calls of Python

  private static Map request(String what, String of) {
    Map request = new HashMap();
    request.put("what", what);
    request.put("of", of);
    return request;
  }

  private Object ask(String what, String of) { return ask(request(what, of), null); }

  /** Asks Python. rows: a Dataset that it writes. Returns what it says as a map, or a Dataset; throws what it refuses. */
  private Object ask(Map request, Object rows) {
    if (python == null) {
      Map nothing = new HashMap();
      nothing.put("missing", Boolean.TRUE);
      nothing.put("names", new ArrayList());
      return nothing;
    }
    try {
      // While a view of the user's own is resolved, the settings are those that it was made with.
      Object answer = SQLConf$.MODULE$.withExistingConf(session.sessionState().conf(), new Asking(python, new ObjectMapper().writeValueAsString(request), rows));
      if (!(answer instanceof String)) return answer;
      Map said = (Map) new ObjectMapper().readValue((String) answer, Map.class);
      if (said.containsKey("refused")) throw new IllegalArgumentException((String) said.get("refused"));
      // Checked, and of those that PySpark shows without Java's stack.
      if (said.containsKey("failed")) Platform.throwException(new QueryExecutionException((String) said.get("failed"), null));
      return said;
    } catch (java.io.IOException e) {
      throw new RuntimeException(e);
    }
  }

  private static String dotted(Identifier ident) { return dotted(ident.namespace(), ident.name()); }

  private static String dotted(String[] namespace, String table) {
    StringBuilder name = new StringBuilder();
    for (int i = 0; i < namespace.length; i++) name.append(i == 0 ? "" : ".").append(namespace[i]);
    if (table != null) name.append(namespace.length == 0 ? "" : ".").append(table);
    return name.toString();
  }

  private String[] qualified(String[] namespace) {
    String[] parts = new String[namespace.length + 1];
    parts[0] = name;
    for (int i = 0; i < namespace.length; i++) parts[i + 1] = namespace[i];
    return parts;
  }

  private List parts(Identifier ident) {
    List parts = new ArrayList(Arrays.asList(qualified(ident.namespace())));
    parts.add(ident.name());
    return parts;
  }

  static class Asking extends scala.runtime.AbstractFunction0 {
    private final BiFunction python;
    private final String request;
    private final Object rows;

    Asking(BiFunction python, String request, Object rows) {
      this.python = python;
      this.request = request;
      this.rows = rows;
    }

    public Object apply() { return python.apply(request, rows); }
  }

  // ---- a table that is read, or altered

  /** For Spark a view, with the properties of the table. */
  public static class Shown extends V1Table implements TruncatableTable, SupportsAtomicPartitionManagement {
    private final ObjcatCatalog catalog;
    private final Identifier ident;
    private Map about;

    Shown(ObjcatCatalog catalog, Identifier ident, CatalogTable view) {
      super(view);
      this.catalog = catalog;
      this.ident = ident;
    }

    private synchronized Map about() {
      try {
        if (about == null) about = catalog.about(ident, false);
      } catch (NoSuchTableException e) {
        throw new IllegalStateException(e.getMessage());
      }
      return about;
    }

    public Map properties() { return (Map) about().get("properties"); }
    public Transform[] partitioning() { return transforms(about()); }
    public boolean truncateTable() {
      catalog.ask("truncate", dotted(ident));
      return true;
    }

    // Of a partition Spark knows the texts of its values, as in paths.

    public StructType partitionSchema() {
      List names = (List) about().get("partition names");
      StructType found = new StructType();
      for (int f = 0; f < names.size(); f++) found = found.add((String) names.get(f), DataTypes.StringType);
      return found;
    }

    /** The partitions as in paths. only: those with these values, of columns of these names. */
    List partitions(String[] names, InternalRow only) {
      Map values = new HashMap();
      for (int v = 0; v < names.length; v++) values.put(names[v], only.isNullAt(v) ? null : only.getString(v));
      Map request = request("show partitions", dotted(ident));
      request.put("only", values);
      return (List) ((Map) catalog.ask(request, null)).get("names");
    }

    public InternalRow[] listPartitionIdentifiers(String[] names, InternalRow only) {
      if (names.length < partitionSchema().length()) throw new UnsupportedOperationException("PARTITION (...) names a part of the partition columns. Nothing was done. Name all of them, or use DELETE FROM.");
      return partitions(names, only).isEmpty() ? new InternalRow[0] : new InternalRow[] {only};
    }

    public boolean dropPartition(InternalRow partition) { return dropPartitions(new InternalRow[] {partition}); }
    public boolean purgePartition(InternalRow partition) { return purgePartitions(null); }
    public boolean truncatePartition(InternalRow partition) { return dropPartition(partition); }
    public boolean truncatePartitions(InternalRow[] partitions) { return dropPartitions(partitions); }

    public boolean dropPartitions(InternalRow[] partitions) {
      List told = new ArrayList();
      for (int p = 0; p < partitions.length; p++) {
        List values = new ArrayList();
        for (int v = 0; v < partitions[p].numFields(); v++) values.add(partitions[p].isNullAt(v) ? null : partitions[p].getString(v));
        told.add(values);
      }
      Map request = request("drop partitions", dotted(ident));
      request.put("values", told);
      catalog.ask(request, null);
      return true;
    }

    public boolean purgePartitions(InternalRow[] partitions) { throw unsupported("PURGE"); }
    public void createPartition(InternalRow partition, Map properties) { throw unsupported("ADD PARTITION"); }
    public void createPartitions(InternalRow[] partitions, Map[] properties) { throw unsupported("ADD PARTITION"); }
    public void replacePartitionMetadata(InternalRow partition, Map properties) { throw unsupported("A property of a partition"); }
    public boolean renamePartition(InternalRow from, InternalRow to) { throw unsupported("RENAME TO PARTITION"); }
    public Map loadPartitionMetadata(InternalRow partition) { return new HashMap(); }

    private static UnsupportedOperationException unsupported(String what) {
      return new UnsupportedOperationException(what + " is not supported: the rows of a table make its partitions. Nothing was done. Write or delete rows.");
    }
  }

  static Transform[] transforms(Map about) {
    List said = (List) about.get("partitions");
    Transform[] found = new Transform[said.size()];
    for (int t = 0; t < found.length; t++) {
      List parts = (List) said.get(t);
      if (parts.get(0).equals("bucket")) {
        found[t] = Expressions.bucket(((Integer) parts.get(1)).intValue(), (String[]) parts.subList(2, parts.size()).toArray(new String[0]));
        continue;
      }
      String kind = (String) parts.get(0), column = (String) parts.get(1);
      if (kind.equals("identity")) found[t] = Expressions.identity(column);
      else if (kind.equals("years")) found[t] = Expressions.years(column);
      else if (kind.equals("months")) found[t] = Expressions.months(column);
      else if (kind.equals("days")) found[t] = Expressions.days(column);
      else if (kind.equals("hours")) found[t] = Expressions.hours(column);
      else found[t] = Expressions.apply(kind, new Expression[] {Expressions.literal(parts.get(2)), Expressions.column(column)});
    }
    return found;
  }

  // ---- a table that is written to

  /** Spark fits rows to its columns, and plans a write as it plans those of older sources: the rows come as a Dataset, when the command runs. */
  public static class Target implements SupportsWrite, SupportsRead {
    final ObjcatCatalog catalog;
    final Identifier ident;
    final StructType schema;
    private final Map about;

    Target(ObjcatCatalog catalog, Identifier ident, Map about) {
      this.catalog = catalog;
      this.ident = ident;
      this.about = about;
      this.schema = (StructType) DataType.fromJson((String) about.get("schema"));
    }

    public String name() { return catalog.name + "." + dotted(ident); }
    public String id() { return (String) about.get("id"); }
    public StructType schema() { return schema; }
    public Transform[] partitioning() { return transforms(about); }
    public Map properties() { return (Map) about.get("properties"); }

    public Set capabilities() {
      Set found = new HashSet();
      found.add(TableCapability.BATCH_READ);
      found.add(TableCapability.BATCH_WRITE);
      found.add(TableCapability.V1_BATCH_WRITE);
      found.add(TableCapability.TRUNCATE);
      found.add(TableCapability.OVERWRITE_BY_FILTER);
      found.add(TableCapability.OVERWRITE_DYNAMIC);
      found.add(TableCapability.STREAMING_WRITE);
      found.add(TableCapability.AUTOMATIC_SCHEMA_EVOLUTION);
      return found;
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) { return properties().containsKey("key") ? new KeyedWriting(this, info) : new Writing(this, info); }
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) { return new Never(this); }
    public String toString() { return name(); }

    List parts() { return catalog.parts(ident); }
    void write(Map request, Object rows) { catalog.ask(request, rows); }
  }

  /** The target below UPDATE, DELETE and MERGE, which nobody reads: what runs is the statement. */
  public static class Never implements ScanBuilder, Scan {
    private final Target target;

    Never(Target target) { this.target = target; }

    public Scan build() { return this; }
    public StructType readSchema() { return target.schema; }
    public String description() { return target.name(); }
    public org.apache.spark.sql.connector.read.Batch toBatch() {
      throw new UnsupportedOperationException(
          "The statement writes to " + target.name() + " and reads it in a subquery, which is not supported. Nothing was done. Read it in a "
              + "temporary view, or in a subquery of FROM.");
    }
  }

  /** One write of rows, which does nothing before the command runs. */
  public static class Writing implements SupportsOverwriteV2, SupportsDynamicOverwrite, V1Write, InsertableRelation {
    private final Target target;
    private final Map request;

    Writing(Target target, LogicalWriteInfo info) {
      this.target = target;
      request = request("write", dotted(target.ident));
      request.put("mode", "append");
      request.put("options", info.options().asCaseSensitiveMap());
      request.put("query", info.queryId());
      request.put("grown", Boolean.valueOf(target.about.containsKey("grown")));
    }

    public WriteBuilder truncate() {
      request.put("mode", "overwrite");
      return this;
    }

    public boolean canOverwrite(Predicate[] predicates) { return true; }

    public WriteBuilder overwrite(Predicate[] predicates) {
      request.put("mode", "overwrite where");
      request.put("where", told((Expression[]) predicates));
      return this;
    }

    public WriteBuilder overwriteDynamicPartitions() {
      request.put("mode", "overwrite partitions");
      return this;
    }

    public Write build() { return this; }
    public String description() { return request.get("mode") + " " + target.name(); }
    public String toString() { return description(); }
    public InsertableRelation toInsertableRelation() { return this; }
    public void insert(org.apache.spark.sql.Dataset rows, boolean overwrite) { target.write(request, rows); }
    public StreamingWrite toStreaming() { return new Streaming(this); }
  }

  /** A write to a table with a key, where rows of a stream that change replace those before. */
  public static class KeyedWriting extends Writing implements SupportsStreamingUpdateAsAppend {
    KeyedWriting(Target target, LogicalWriteInfo info) { super(target, info); }
  }

  /** What a stream writes to. Executors never see it: the strategy below takes each batch as a whole. */
  public static class Streaming implements StreamingWrite {
    final Writing writing;

    Streaming(Writing writing) { this.writing = writing; }

    public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
      throw new UnsupportedOperationException("The trigger of the stream has no batches. Nothing was written. Use processingTime or availableNow.");
    }

    public void commit(long epoch, WriterCommitMessage[] messages) { }
    public void abort(long epoch, WriterCommitMessage[] messages) { }
    public String toString() { return writing.description(); }
  }

  /** A table that a command creates or replaces. Its rows and the table become visible together, when they are written. */
  public static class Staged extends Target implements StagedTable {
    private final Map table;
    private final String how;
    private boolean written = false;

    Staged(ObjcatCatalog catalog, Identifier ident, TableInfo info, String how) {
      super(catalog, ident, about(info));
      this.table = told(info);
      this.how = how;
    }

    private static Map about(TableInfo info) {
      Map about = new HashMap();
      about.put("schema", info.schema().json());
      about.put("partitions", new ArrayList());
      about.put("properties", info.properties());
      return about;
    }

    void write(Map request, Object rows) {
      Map whole = request("create", dotted(ident));
      whole.put("table", table);
      whole.put("how", how);
      if (((Map) catalog.ask(whole, rows)).containsKey("exists")) throw new IllegalArgumentException("The table " + name() + " exists already. Nothing was written. Choose another name, or write to it.");
      written = true;
    }

    public void commitStagedChanges() { if (!written) write(null, null); }
    public void abortStagedChanges() { }
  }

  // ---- commands for which Spark has no plan

  /** UPDATE, DELETE and MERGE run by their text. An overwrite of partitions has its rows, which Spark hands over in other writes only. */
  public static class Commands extends SparkStrategy {
    public scala.collection.immutable.Seq apply(LogicalPlan plan) {
      List found = new ArrayList();
      if (plan instanceof UpdateTable || plan instanceof DeleteFromTable || plan instanceof MergeIntoTable) {
        Target target = target((LogicalPlan) plan.children().apply(0));
        if (target != null) found.add(new Command(target, plan.origin(), null));
      } else if (plan instanceof OverwritePartitionsDynamic && ((OverwritePartitionsDynamic) plan).write().isDefined()) {
        Object write = ((OverwritePartitionsDynamic) plan).write().get();
        if (write instanceof Writing) found.add(new Command(((Writing) write).target, plan.origin(), (Writing) write));
      } else if (plan instanceof WriteToDataSourceV2 && ((WriteToDataSourceV2) plan).batchWrite() instanceof MicroBatchWrite) {
        StreamingWrite write = ((MicroBatchWrite) ((WriteToDataSourceV2) plan).batchWrite()).writeSupport();
        if (write instanceof Streaming) found.add(new Batch(((Streaming) write).writing, new PlanLater(((WriteToDataSourceV2) plan).query())));
      } else if (plan instanceof ShowPartitions) {
        Object table = ((ShowPartitions) plan).table();
        if (table instanceof ResolvedTable && ((ResolvedTable) table).table() instanceof Shown) found.add(new Partitions((ShowPartitions) plan));
      } else refuse(plan);
      return PythonUtils.toSeq(found);
    }

    private static Target target(LogicalPlan plan) {
      while (plan.children().size() == 1) plan = (LogicalPlan) plan.children().apply(0);
      if (plan instanceof DataSourceV2ScanRelation) plan = ((DataSourceV2ScanRelation) plan).relation();
      Object table = plan instanceof DataSourceV2Relation ? ((DataSourceV2Relation) plan).table() : null;
      return table instanceof Target ? (Target) table : null;
    }

    /** Spark has no plan for these, and ends with an error about itself. */
    private static void refuse(LogicalPlan plan) {
      String sentence = (String) REFUSED.get(plan.getClass().getSimpleName());
      if (sentence == null || plan.children().isEmpty()) return;
      LogicalPlan child = (LogicalPlan) plan.children().apply(0);
      boolean ours = child instanceof ResolvedTable ? ((ResolvedTable) child).catalog() instanceof ObjcatCatalog
          : child instanceof ResolvedIdentifier ? ((ResolvedIdentifier) child).catalog() instanceof ObjcatCatalog
          : child instanceof ResolvedNamespace && ((ResolvedNamespace) child).catalog() instanceof ObjcatCatalog;
      if (ours) throw new IllegalArgumentException(sentence);
    }
  }

  private static final Map REFUSED = refused();

  /** The sentence, by the class of a statement. They are names, because older versions of Spark lack some. */
  private static Map refused() {
    String view = "A lake has no views. Nothing was done. Use CREATE TEMPORARY VIEW, a view in spark_catalog, or CREATE TABLE ... AS SELECT.";
    Map found = new HashMap();
    found.put("AddConstraint", CONSTRAINT);
    found.put("DropConstraint", CONSTRAINT);
    found.put("CreateView", view);
    found.put("AlterViewAs", view);
    found.put("AnalyzeTables", "ANALYZE TABLES is not supported, because the metadata of a table has its statistics. Nothing was done. Leave it out.");
    return found;
  }

  /** A command of ours. */
  public static abstract class OurCommand extends V2CommandExec implements LeafV2CommandExec {
    abstract String says();

    public scala.collection.immutable.Seq output() { return PythonUtils.toSeq(new ArrayList()); }
    // A leaf, in words, because Janino passes over what Scala's traits define.
    public scala.collection.immutable.Seq children() { return PythonUtils.toSeq(new ArrayList()); }
    public TreeNode mapChildren(scala.Function1 change) { return this; }
    public TreeNode withNewChildrenInternal(scala.collection.immutable.IndexedSeq children) { return this; }
    public String nodeName() { return "ObjcatCommand"; }
    public String simpleString(int fields) { return "ObjcatCommand " + says(); }
    public boolean equals(Object other) { return this == other; }
    public int hashCode() { return System.identityHashCode(this); }
  }

  /** SHOW PARTITIONS. */
  public static class Partitions extends OurCommand {
    private final ShowPartitions of;

    public Partitions(ShowPartitions of) { this.of = of; }

    public scala.collection.immutable.Seq run() {
      String[] names = new String[0];
      InternalRow only = null;
      if (of.pattern().isDefined()) {
        ResolvedPartitionSpec said = (ResolvedPartitionSpec) of.pattern().get();
        names = new String[said.names().size()];
        for (int n = 0; n < names.length; n++) names[n] = (String) said.names().apply(n);
        only = said.ident();
      }
      List found = ((Shown) ((ResolvedTable) of.table()).table()).partitions(names, only), rows = new ArrayList();
      for (int p = 0; p < found.size(); p++) rows.add(new GenericInternalRow(new Object[] {UTF8String.fromString((String) found.get(p))}));
      return PythonUtils.toSeq(rows);
    }

    public scala.collection.immutable.Seq output() { return of.output(); }
    String says() { return "SHOW PARTITIONS"; }
    public int productArity() { return 1; }
    public Object productElement(int n) { return of; }
    public boolean canEqual(Object other) { return other instanceof Partitions; }
  }

  public static class Command extends OurCommand {
    private final Target target;
    private final Origin of;
    private final Writing writing;

    // Public, because Spark copies plans by their constructors.
    public Command(Target target, Origin of, Writing writing) {
      this.target = target;
      this.of = of;
      this.writing = writing;
    }

    public scala.collection.immutable.Seq run() {
      if (writing != null) writing.insert(rows(), true);
      else if (of.sqlText().isDefined() && of.startIndex().isDefined() && of.stopIndex().isDefined()) target.write(statement(), null);
      else {
        MergeIntoTable merge = (MergeIntoTable) execution().logical();
        Map request = request("statement", dotted(target.ident));
        request.put("before", "");
        request.put("text", MergeText.of(merge, target.parts()));
        target.write(request, frame(merge.sourceTable()));
      }
      return output();
    }

    private Map statement() {
      Map request = request("statement", dotted(target.ident));
      // Positions are those in the text with the values of parameters.
      String text = (String) (of.positionMapper().isDefined() ? ((PositionMapper) of.positionMapper().get()).substitutedText() : of.sqlText().get());
      int start = ((Integer) of.startIndex().get()).intValue(), stop = ((Integer) of.stopIndex().get()).intValue();
      request.put("before", text.substring(0, start));
      request.put("text", text.substring(start, stop + 1));
      return request;
    }

    private org.apache.spark.sql.execution.QueryExecution execution() {
      String id = session().sparkContext().getLocalProperty("spark.sql.execution.id");
      return (org.apache.spark.sql.execution.QueryExecution) ((Object) org.apache.spark.sql.execution.SQLExecution$.MODULE$.getQueryExecution(Long.parseLong(id)));
    }

    private org.apache.spark.sql.Dataset frame(LogicalPlan plan) {
      return org.apache.spark.sql.classic.Dataset$.MODULE$.ofRows((org.apache.spark.sql.classic.SparkSession) ((Object) session()), plan);
    }

    /** The rows as they were analysed: the optimizer runs again when they are written. */
    private org.apache.spark.sql.Dataset rows() {
      LogicalPlan plan = execution().analyzed();
      LogicalPlan defined = plan;
      while (!(plan instanceof OverwritePartitionsDynamic)) plan = (LogicalPlan) plan.children().apply(plan instanceof WithCTE ? 0 : plan.children().size() - 1);
      LogicalPlan query = (LogicalPlan) plan.children().apply(0);
      if (defined instanceof WithCTE) query = new WithCTE(query, ((WithCTE) defined).cteDefs());
      return frame(query);
    }

    String says() { return writing == null ? target.name() : writing.description(); }
    public int productArity() { return 3; }
    public Object productElement(int n) { return n == 0 ? (Object) target : n == 1 ? (Object) of : writing; }
    public boolean canEqual(Object other) { return other instanceof Command; }
  }

  /** Writes one batch of a stream, whose rows Spark plans as it plans those of foreachBatch. */
  public static class Batch extends V2CommandExec {
    private final Writing writing;
    private final SparkPlan child;

    public Batch(Writing writing, SparkPlan child) {
      this.writing = writing;
      this.child = child;
    }

    public scala.collection.immutable.Seq run() {
      org.apache.spark.sql.classic.SparkSession session = (org.apache.spark.sql.classic.SparkSession) ((Object) session());
      Map request = new HashMap(writing.request);
      request.put("what", "stream");
      request.put("batch", session.sparkContext().getLocalProperty("streaming.sql.batchId"));
      writing.target.write(request, session.internalCreateDataFrame(child.execute(), child.schema(), false));
      return output();
    }

    public scala.collection.immutable.Seq output() { return PythonUtils.toSeq(new ArrayList()); }
    public scala.collection.immutable.Seq children() { return PythonUtils.toSeq(Arrays.asList(new Object[] {child})); }
    public TreeNode mapChildren(scala.Function1 change) {
      SparkPlan changed = (SparkPlan) change.apply(child);
      return changed == child ? this : new Batch(writing, changed);
    }
    public TreeNode withNewChildrenInternal(scala.collection.immutable.IndexedSeq children) { return new Batch(writing, (SparkPlan) children.apply(0)); }
    public String nodeName() { return "ObjcatBatch"; }
    public String simpleString(int fields) { return "ObjcatBatch " + writing.description(); }
    public int productArity() { return 2; }
    public Object productElement(int n) { return n == 0 ? (Object) writing : child; }
    public boolean canEqual(Object other) { return other instanceof Batch; }
    public boolean equals(Object other) { return this == other; }
    public int hashCode() { return System.identityHashCode(this); }
  }

  /** The text of a merge that has none, because a program made it: `df.mergeInto(...)`. Its columns are resolved, and stars are gone. */
  static class MergeText extends scala.runtime.AbstractPartialFunction {
    private final MergeIntoTable merge;
    private final String source, target;
    private final StringBuilder text = new StringBuilder();

    /** parts: the name of the table. */
    static String of(MergeIntoTable merge, List parts) { return new MergeText(merge, parts).text.toString(); }

    private MergeText(MergeIntoTable merge, List parts) {
      this.merge = merge;
      source = merge.sourceTable() instanceof SubqueryAlias ? ((SubqueryAlias) merge.sourceTable()).alias() : "source";
      String own = (String) parts.get(parts.size() - 1);
      target = own.equalsIgnoreCase(source) ? source + "_target" : own;
      text.append(merge.withSchemaEvolution() ? "MERGE WITH SCHEMA EVOLUTION INTO " : "MERGE INTO ");
      for (int p = 0; p < parts.size(); p++) text.append(p == 0 ? "" : ".").append(quoted((String) parts.get(p)));
      text.append(" AS ").append(quoted(target)).append(" USING ").append(quoted(source)).append(" ON ").append(sql(merge.mergeCondition()));
      add("MATCHED", merge.matchedActions());
      add("NOT MATCHED", merge.notMatchedActions());
      add("NOT MATCHED BY SOURCE", merge.notMatchedBySourceActions());
    }

    private void add(String when, scala.collection.immutable.Seq actions) {
      for (int a = 0; a < actions.size(); a++) {
        MergeAction action = (MergeAction) actions.apply(a);
        text.append(" WHEN ").append(when);
        if (action.condition().isDefined()) text.append(" AND ").append(sql(action.condition().get()));
        text.append(" THEN ");
        if (action instanceof DeleteAction) text.append("DELETE");
        else if (action instanceof UpdateStarAction) text.append("UPDATE SET *");
        else if (action instanceof InsertStarAction) text.append("INSERT *");
        else if (action instanceof UpdateAction) update(((UpdateAction) action).assignments());
        else insert(((InsertAction) action).assignments());
      }
    }

    private void update(scala.collection.immutable.Seq assigned) {
      text.append("UPDATE SET ");
      if (isStar(assigned)) text.append("*");
      else for (int i = 0; i < assigned.size(); i++) text.append(i == 0 ? "" : ", ").append(sql(key(assigned, i))).append(" = ").append(sql(value(assigned, i)));
    }

    private void insert(scala.collection.immutable.Seq assigned) {
      text.append("INSERT ");
      if (isStar(assigned)) {
        text.append("*");
        return;
      }
      StringBuilder values = new StringBuilder();
      for (int i = 0; i < assigned.size(); i++) {
        text.append(i == 0 ? "(" : ", ").append(sql(key(assigned, i)));
        values.append(i == 0 ? "" : ", ").append(sql(value(assigned, i)));
      }
      text.append(") VALUES (").append(values).append(")");
    }

    /** Whether every column of the table gets the one of the source with its name, as Spark says a star. */
    private boolean isStar(scala.collection.immutable.Seq assigned) {
      for (int i = 0; i < assigned.size(); i++) {
        Object key = key(assigned, i), value = value(assigned, i);
        if (value instanceof Cast) value = ((Cast) value).child();
        if (!(key instanceof AttributeReference) || !(value instanceof AttributeReference) || isOfTarget((AttributeReference) value)) return false;
        if (!((AttributeReference) key).name().equals(((AttributeReference) value).name())) return false;
      }
      return assigned.size() == merge.targetTable().output().size();
    }

    private static Object key(scala.collection.immutable.Seq assigned, int i) { return ((Assignment) assigned.apply(i)).key(); }
    private static Object value(scala.collection.immutable.Seq assigned, int i) { return ((Assignment) assigned.apply(i)).value(); }
    private boolean isOfTarget(AttributeReference column) { return merge.targetTable().outputSet().contains(column); }
    private String sql(Object expression) { return ((org.apache.spark.sql.catalyst.expressions.Expression) ((TreeNode) expression).transformUp(this)).sql(); }
    private static String quoted(String name) { return "`" + name.replace("`", "``") + "`"; }

    // Columns get the names of their sides, and casts that Spark added go, since they hide a key.
    public boolean isDefinedAt(Object one) {
      String kind = one.getClass().getSimpleName();
      if (kind.equals("PythonUDF") || kind.equals("ScalaUDF") || kind.equals("LambdaFunction"))
        throw new IllegalArgumentException("mergeInto() has a function of a program or a lambda, which has no text. Nothing was done. Make it a column of the source.");
      return one instanceof AttributeReference || (one instanceof Cast && ((Cast) one).getTagValue(Cast$.MODULE$.USER_SPECIFIED_CAST()).isEmpty());
    }

    public Object applyOrElse(Object one, scala.Function1 otherwise) {
      if (!isDefinedAt(one)) return otherwise.apply(one);
      if (one instanceof Cast) return ((Cast) one).child();
      AttributeReference column = (AttributeReference) one;
      return new UnresolvedAttribute(PythonUtils.toSeq(new ArrayList(Arrays.asList(new String[] {isOfTarget(column) ? target : source, column.name()}))));
    }
  }

  // ---- CALL

  public Identifier[] listProcedures(String[] namespace) {
    List names = (List) ((Map) ask("services", null)).get("names");
    Identifier[] found = new Identifier[namespace.length == 0 ? names.size() : 0];
    for (int i = 0; i < found.length; i++) found[i] = Identifier.of(namespace, (String) names.get(i));
    return found;
  }

  public UnboundProcedure loadProcedure(Identifier ident) { return new Service(this, ident.name(), null); }

  /** A service. Spark resolves and counts its arguments; Python knows what they mean. */
  public static class Service implements UnboundProcedure, BoundProcedure {
    private final ObjcatCatalog catalog;
    private final String name;
    private final StructType given;

    Service(ObjcatCatalog catalog, String name, StructType given) {
      this.catalog = catalog;
      this.name = name;
      this.given = given;
    }

    public String name() { return name; }
    public String description() { return name; }
    public boolean isDeterministic() { return false; }
    // Spark binds until nothing changes.
    public boolean equals(Object other) {
      return other instanceof Service && name.equals(((Service) other).name) && catalog == ((Service) other).catalog && java.util.Objects.equals(given, ((Service) other).given);
    }
    public int hashCode() { return name.hashCode(); }
    public BoundProcedure bind(StructType given) { return new Service(catalog, name, given); }

    public ProcedureParameter[] parameters() {
      ProcedureParameter[] found = new ProcedureParameter[given.size()];
      for (int f = 0; f < found.length; f++) found[f] = ProcedureParameter.in(given.fields()[f].name(), given.fields()[f].dataType()).build();
      return found;
    }

    public java.util.Iterator call(InternalRow values) {
      List arguments = new ArrayList();
      for (int f = 0; f < given.size(); f++) {
        StructField field = given.fields()[f];
        List argument = new ArrayList();
        argument.add(field.metadata().contains(ProcedureParameter.BY_NAME_METADATA_KEY) ? field.name() : null);
        argument.add(text(values.isNullAt(f) ? null : values.get(f, field.dataType()), field.dataType()));
        arguments.add(argument);
      }
      Map request = request("call", null);
      request.put("name", name);
      request.put("arguments", arguments);
      List found = new ArrayList();
      found.add(new Told((org.apache.spark.sql.classic.Dataset) catalog.ask(request, null)));
      return found.iterator();
    }

    /** A value as SQL. */
    private static String text(Object value, DataType type) {
      return value instanceof Number || value instanceof Decimal ? value.toString() : new Literal(value, type).sql();
    }
  }

  /** The few rows that a service returns. */
  public static class Told implements LocalScan {
    private final InternalRow[] rows;
    private final StructType schema;

    Told(org.apache.spark.sql.classic.Dataset told) {
      schema = told.schema();
      rows = told.queryExecution().executedPlan().executeCollect();
    }

    public InternalRow[] rows() { return rows; }
    public StructType readSchema() { return schema; }
  }

  // ---- plans of queries

  static class Finding extends scala.runtime.AbstractFunction0 {
    private final org.apache.spark.sql.classic.SparkSession session;
    private final String name;

    Finding(org.apache.spark.sql.classic.SparkSession session, String name) {
      this.session = session;
      this.name = name;
    }

    public Object apply() { return session.sessionState().catalogManager().catalog(name); }
  }

  /** A plan, which memory takes back when it needs to. parts: the name of the table whose newest slot it reads; else null. */
  static class Named {
    final SoftReference plan;
    final List parts;

    Named(LogicalPlan plan, List parts) {
      this.plan = new SoftReference(plan);
      this.parts = parts;
    }
  }

  /** Plans of queries that are being analysed. They are used at once. */
  static class Plans extends LinkedHashMap {
    protected boolean removeEldestEntry(Map.Entry eldest) { return size() > PLANS_MAX; }
  }

  /** The function `objcat_rows`. */
  static class Rows extends scala.runtime.AbstractFunction1 {
    public Object apply(Object arguments) {
      scala.collection.immutable.Seq given = (scala.collection.immutable.Seq) arguments;
      String token = given.size() == 1 && given.apply(0) instanceof Literal ? String.valueOf(((Literal) given.apply(0)).value()) : "";
      Named found;
      synchronized (plans) {
        found = (Named) plans.get(token);
      }
      Object plan = found == null ? null : found.plan.get();
      if (plan == null) throw new IllegalStateException("no plan is known as '" + token + "', which only a query knows while it is analysed: run it again");
      if (found.parts != null) forget(found.parts);
      return plan;
    }

    /** Spark keeps one relation for each table of a query, whether it is read or written to. Here a table that is read is none to write to. */
    private static void forget(List parts) {
      Object context = AnalysisContext$.MODULE$.get();
      forget(((org.apache.spark.sql.catalyst.analysis.AnalysisContext) context).relationCache(), parts);
    }

    private static void forget(scala.collection.mutable.Map cache, List parts) {
      List gone = new ArrayList();
      scala.collection.Iterator keys = cache.keysIterator();
      while (keys.hasNext()) {
        Object key = keys.next();
        if (key instanceof scala.Product && PythonUtils.toSeq(parts).equals(((scala.Product) key).productElement(0)) && ((scala.Option) ((scala.Product) key).productElement(1)).isEmpty()) gone.add(key);
      }
      for (int g = 0; g < gone.size(); g++) cache.remove(gone.get(g));
    }
  }

  private static boolean known(String name) {
    try {
      Class.forName(name, false, FunctionIdentifier.class.getClassLoader());
      return true;
    } catch (ClassNotFoundException e) {
      return false;
    }
  }

  /** Makes catalogs. One object for each JVM, which Python holds. */
  /**
   * Columns and filters for Python workers. Spark pushes neither into them, so projections and filters end right above. The rows come from a
   * plan that Python makes again with both, see narrowing.py. The filters stay: what Python makes of them only leaves out rows that they drop.
   */
  public static class Narrow extends Rule {
    static final String MARK = "objcat_rows_";
    private final ObjcatCatalog catalog;

    Narrow(ObjcatCatalog catalog) { this.catalog = catalog; }

    public String ruleName() { return "ObjcatNarrow"; }

    public TreeNode apply(TreeNode plan) {
      if (plan instanceof Command) return plan;
      LogicalPlan made = narrowed((LogicalPlan) plan);
      if (made == plan) return plan;
      // The new rows have a plan of their own, which was not optimized.
      org.apache.spark.sql.classic.SparkSession session = (org.apache.spark.sql.classic.SparkSession) ((Object) org.apache.spark.sql.classic.SparkSession$.MODULE$.active());
      return session.sessionState().optimizer().execute(made);
    }

    private LogicalPlan narrowed(LogicalPlan plan) {
      List above = new ArrayList();
      LogicalPlan below = plan;
      while (below instanceof Filter || (below instanceof Project && above.isEmpty())) {
        above.add(below);
        below = (LogicalPlan) below.children().apply(0);
      }
      String mark = above.isEmpty() ? null : mark(below);
      if (mark != null) {
        LogicalPlan rows = rows(mark, above, below);
        if (rows == null) return plan;
        for (int a = above.size() - 1; a >= 0; a--) rows = over((LogicalPlan) above.get(a), Arrays.asList(new Object[] {rows}));
        return rows;
      }
      List children = new ArrayList();
      boolean same = true;
      for (int c = 0; c < plan.children().size(); c++) {
        LogicalPlan child = (LogicalPlan) plan.children().apply(c), made = narrowed(child);
        same = same && made == child;
        children.add(made);
      }
      return same ? plan : over(plan, children);
    }

    private static LogicalPlan over(LogicalPlan plan, List children) {
      return (LogicalPlan) ((Object) plan.withNewChildren(PythonUtils.toSeq(new ArrayList(children))));
    }

    /** The mark of a plan by Python workers; null where it has none. Versions of Spark differ in the name of the class. */
    private static String mark(LogicalPlan plan) {
      if (!plan.getClass().getSimpleName().endsWith("MapInArrow")) return null;
      scala.collection.immutable.Seq taken = ((LogicalPlan) plan.children().apply(0)).output();
      for (int t = 0; t < taken.size(); t++) if (((Attribute) taken.apply(t)).name().startsWith(MARK)) return ((Attribute) taken.apply(t)).name();
      return null;
    }

    /** The rows of a plan with the columns alone that plans above read. null: as they are. */
    private LogicalPlan rows(String mark, List above, LogicalPlan below) {
      scala.collection.immutable.Seq output = below.output();
      List paths = new ArrayList(), wanted = new ArrayList(), where = new ArrayList();
      if (!(above.get(0) instanceof Project)) for (int o = 0; o < output.size(); o++) add((Attribute) output.apply(o), new ArrayList(), output, paths, wanted);
      for (int a = 0; a < above.size(); a++) {
        scala.collection.immutable.Seq expressions = ((LogicalPlan) above.get(a)).expressions();
        for (int e = 0; e < expressions.size(); e++) read((org.apache.spark.sql.catalyst.expressions.Expression) expressions.apply(e), output, paths, wanted);
        if (above.get(a) instanceof Filter) conditions(((Filter) above.get(a)).condition(), where);
      }
      Map request = request("narrow", mark);
      request.put("columns", paths);
      request.put("where", where);
      Object answer = catalog.ask(request, null);
      if (answer instanceof Map) return null;
      LogicalPlan plan = ((org.apache.spark.sql.classic.Dataset) answer).queryExecution().analyzed();
      List columns = new ArrayList();
      for (int w = 0; w < wanted.size(); w++) {
        Attribute had = (Attribute) wanted.get(w), has = null;
        for (int o = 0; o < plan.output().size(); o++) if (((Attribute) plan.output().apply(o)).name().equals(had.name())) has = (Attribute) plan.output().apply(o);
        if (has == null || !has.dataType().equals(had.dataType())) return null;
        columns.add(new Alias(has, had.name(), had.exprId(), had.qualifier(), scala.Option.apply(had.metadata()), PythonUtils.toSeq(new ArrayList())));
      }
      return new Project(PythonUtils.toSeq(columns), plan);
    }

    /** Adds what an expression reads: columns, and fields of structs of which it reads nothing else. */
    private static void read(org.apache.spark.sql.catalyst.expressions.Expression expression, scala.collection.immutable.Seq output, List paths, List wanted) {
      List names = new ArrayList();
      org.apache.spark.sql.catalyst.expressions.Expression at = expression;
      while (at instanceof GetStructField) {
        names.add(0, ((GetStructField) at).extractFieldName());
        at = ((GetStructField) at).child();
      }
      if (at instanceof Attribute) add((Attribute) at, names, output, paths, wanted);
      else for (int c = 0; c < at.children().size(); c++) read((org.apache.spark.sql.catalyst.expressions.Expression) at.children().apply(c), output, paths, wanted);
    }

    private static void add(Attribute attribute, List fields, scala.collection.immutable.Seq output, List paths, List wanted) {
      for (int o = 0; o < output.size(); o++) {
        Attribute own = (Attribute) output.apply(o);
        // A query may spell a name otherwise.
        if (!own.exprId().equals(attribute.exprId())) continue;
        List path = new ArrayList(fields);
        path.add(0, own.name());
        if (!paths.contains(path)) paths.add(path);
        if (!wanted.contains(own)) wanted.add(own);
      }
    }

    /** Adds the terms of a condition that a source could be told. */
    private static void conditions(org.apache.spark.sql.catalyst.expressions.Expression condition, List told) {
      if (condition instanceof And) {
        conditions(((And) condition).left(), told);
        conditions(((And) condition).right(), told);
        return;
      }
      scala.Option found = DataSourceV2Strategy$.MODULE$.translateFilterV2(condition);
      if (found.isDefined()) told.add(told((Expression) found.get()));
    }
  }

  public static class Catalogs {
    /** Names a lake in a session. python: answers the questions, see catalog_answers.py; null takes the name away. */
    public void register(org.apache.spark.sql.classic.SparkSession session, String name, BiFunction python) {
      Thread thread = Thread.currentThread();
      ClassLoader before = thread.getContextClassLoader();
      // Spark finds a catalog by the name of its class, in the loader of the thread that first asks.
      thread.setContextClassLoader(ObjcatCatalog.class.getClassLoader());
      CatalogPlugin found;
      try {
        // The settings that it looks at are those of the active session, which may be another one.
        found = (CatalogPlugin) SQLConf$.MODULE$.withExistingConf(session.sessionState().conf(), new Finding(session, name));
      } finally {
        thread.setContextClassLoader(before);
      }
      ObjcatCatalog catalog = (ObjcatCatalog) found;
      catalog.session = session;
      catalog.python = python;
      // Newer versions of Spark know functions by whole names; older ones leave out the rest, and look the short one up.
      boolean whole = known("org.apache.spark.sql.catalyst.catalog.SessionCatalog$SessionFunctionKind");
      session.sessionState().tableFunctionRegistry().registerFunction(
          whole ? new FunctionIdentifier(FUNCTION, scala.Option.apply("builtin"), scala.Option.apply("system")) : new FunctionIdentifier(FUNCTION),
          new Rows(), "built-in");
      plan(session);
      narrow(session, catalog);
      if (python == null && name.equals(session.sessionState().catalogManager().currentCatalog().name()))
        session.sessionState().catalogManager().setCurrentCatalog("spark_catalog");
    }

    /** One rule for each session, which asks the catalog that was named last. */
    private static void narrow(org.apache.spark.sql.classic.SparkSession session, ObjcatCatalog catalog) {
      synchronized (session.experimental()) {
        scala.collection.immutable.Seq had = session.experimental().extraOptimizations();
        List all = new ArrayList();
        // First, because the other rules look at its result.
        if (catalog.python != null) all.add(new Narrow(catalog));
        for (int r = 0; r < had.size(); r++) if (!(had.apply(r) instanceof Narrow)) all.add(had.apply(r));
        session.experimental().extraOptimizations_$eq(PythonUtils.toSeq(all));
      }
    }

    private static void plan(org.apache.spark.sql.classic.SparkSession session) {
      synchronized (session.experimental()) {
        scala.collection.immutable.Seq had = session.experimental().extraStrategies();
        List all = new ArrayList();
        for (int s = 0; s < had.size(); s++) {
          if (had.apply(s) instanceof Commands) return;
          all.add(had.apply(s));
        }
        all.add(new Commands());
        session.experimental().extraStrategies_$eq(PythonUtils.toSeq(all));
      }
    }
  }
}
