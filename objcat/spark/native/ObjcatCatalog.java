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

import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.analysis.AnalysisContext$;
import org.apache.spark.sql.catalyst.analysis.NamespaceAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.catalyst.catalog.CatalogStorageFormat$;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.CatalogTable$;
import org.apache.spark.sql.catalyst.catalog.CatalogTableType$;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.plans.logical.DeleteFromTable;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MergeIntoTable;
import org.apache.spark.sql.catalyst.parser.PositionMapper;
import org.apache.spark.sql.catalyst.plans.logical.OverwritePartitionsDynamic;
import org.apache.spark.sql.catalyst.plans.logical.UpdateTable;
import org.apache.spark.sql.catalyst.plans.logical.WithCTE;
import org.apache.spark.sql.catalyst.trees.Origin;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.catalog.*;
import org.apache.spark.sql.connector.catalog.constraints.Constraint;
import org.apache.spark.sql.connector.catalog.constraints.PrimaryKey;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsDynamicOverwrite;
import org.apache.spark.sql.connector.write.SupportsOverwriteV2;
import org.apache.spark.sql.connector.write.V1Write;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.QueryExecutionException;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.LeafV2CommandExec;
import org.apache.spark.sql.execution.datasources.v2.V2CommandExec;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.sources.InsertableRelation;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;

/**
 * A table that is read is a view for Spark. Its text calls the function `objcat_rows` with the name of the plan that Python has just made. So
 * Spark needs nothing new to resolve it: a view may be read by every query, and its plan may have several relations. A table that is written to
 * is a `Target`, because Spark asks for it by another method.
 */
public class ObjcatCatalog implements StagingTableCatalog, SupportsNamespaces, ProcedureCatalog {
  static final String FUNCTION = "objcat_rows";
  static final int PLANS_MAX = 256;
  private static final Map plans = new Plans();
  private static long made = 0;

  private String name;
  private org.apache.spark.sql.classic.SparkSession session;
  private BiFunction python;

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
  public Table loadTable(Identifier ident) throws NoSuchTableException { return load(ident, null, null); }
  public Table loadTable(Identifier ident, String version) throws NoSuchTableException { return load(ident, version, null); }
  public Table loadTable(Identifier ident, long micros) throws NoSuchTableException { return load(ident, null, Long.valueOf(micros)); }
  public Table loadTable(Identifier ident, Set privileges) throws NoSuchTableException { return new Target(this, ident, about(ident)); }

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

  /** What Python says of a table. */
  private Map about(Identifier ident) throws NoSuchTableException {
    Map answer = (Map) ask("about", dotted(ident));
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
    Constraint[] constraints = info.constraints();
    List others = new ArrayList();
    for (int c = 0; c < constraints.length; c++)
      if (constraints[c] instanceof PrimaryKey) {
        List key = new ArrayList();
        NamedReference[] columns = ((PrimaryKey) constraints[c]).columns();
        for (int k = 0; k < columns.length; k++) key.add(columns[k].fieldNames()[0]);
        told.put("key", key);
      } else others.add(constraints[c].toDDL());
    told.put("constraints", others);
    return told;
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

  /** Newer versions of Spark define the method in a class that is not public, which Janino does not look into. */
  private static Object sql(DefaultValue value) {
    try {
      Method method = DefaultValue.class.getMethod("getSql", new Class[0]);
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
  public static class Shown extends V1Table implements TruncatableTable {
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
        if (about == null) about = catalog.about(ident);
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
      return found;
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) { return new Writing(this, info); }
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) { return new Never(this); }
    public String toString() { return name(); }

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
      }
      return PythonUtils.toSeq(found);
    }

    private static Target target(LogicalPlan plan) {
      while (plan.children().size() == 1) plan = (LogicalPlan) plan.children().apply(0);
      if (plan instanceof DataSourceV2ScanRelation) plan = ((DataSourceV2ScanRelation) plan).relation();
      Object table = plan instanceof DataSourceV2Relation ? ((DataSourceV2Relation) plan).table() : null;
      return table instanceof Target ? (Target) table : null;
    }
  }

  public static class Command extends V2CommandExec implements LeafV2CommandExec {
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
      else target.write(statement(), null);
      return output();
    }

    private Map statement() {
      Map request = request("statement", dotted(target.ident));
      if (of.sqlText().isDefined() && of.startIndex().isDefined() && of.stopIndex().isDefined()) {
        // Positions are those in the text with the values of parameters.
        String text = (String) (of.positionMapper().isDefined() ? ((PositionMapper) of.positionMapper().get()).substitutedText() : of.sqlText().get());
        int start = ((Integer) of.startIndex().get()).intValue(), stop = ((Integer) of.stopIndex().get()).intValue();
        request.put("before", text.substring(0, start));
        request.put("text", text.substring(start, stop + 1));
      }
      return request;
    }

    /** The rows as they were analysed: the optimizer runs again when they are written. */
    private org.apache.spark.sql.Dataset rows() {
      String id = session().sparkContext().getLocalProperty("spark.sql.execution.id");
      LogicalPlan plan = ((org.apache.spark.sql.execution.QueryExecution) ((Object) org.apache.spark.sql.execution.SQLExecution$.MODULE$.getQueryExecution(Long.parseLong(id)))).analyzed();
      LogicalPlan defined = plan;
      while (!(plan instanceof OverwritePartitionsDynamic)) plan = (LogicalPlan) plan.children().apply(plan instanceof WithCTE ? 0 : plan.children().size() - 1);
      LogicalPlan query = (LogicalPlan) plan.children().apply(0);
      if (defined instanceof WithCTE) query = new WithCTE(query, ((WithCTE) defined).cteDefs());
      return org.apache.spark.sql.classic.Dataset$.MODULE$.ofRows((org.apache.spark.sql.classic.SparkSession) ((Object) session()), query);
    }

    public scala.collection.immutable.Seq output() { return PythonUtils.toSeq(new ArrayList()); }
    // A leaf, in words, because Janino passes over what Scala's traits define.
    public scala.collection.immutable.Seq children() { return output(); }
    public TreeNode mapChildren(scala.Function1 change) { return this; }
    public TreeNode withNewChildrenInternal(scala.collection.immutable.IndexedSeq children) { return this; }
    public String nodeName() { return "ObjcatCommand"; }
    public String simpleString(int fields) { return "ObjcatCommand " + (writing == null ? target.name() : writing.description()); }
    public int productArity() { return 3; }
    public Object productElement(int n) { return n == 0 ? (Object) target : n == 1 ? (Object) of : writing; }
    public boolean canEqual(Object other) { return other instanceof Command; }
    public boolean equals(Object other) { return this == other; }
    public int hashCode() { return System.identityHashCode(this); }
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
      if (python == null && name.equals(session.sessionState().catalogManager().currentCatalog().name()))
        session.sessionState().catalogManager().setCurrentCatalog("spark_catalog");
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
