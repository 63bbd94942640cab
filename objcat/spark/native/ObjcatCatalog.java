// A lake as a catalog of Spark's SQL, compiled by the Janino that Spark ships, as ObjcatFileIndex is. It knows nothing of tables: it asks
// Python, while a query is analysed, and only then. Janino wants plain Java: no lambdas, no diamonds, no generics of its own.

import java.lang.ref.SoftReference;
import java.lang.reflect.Constructor;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.catalog.CatalogStorageFormat$;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.CatalogTable$;
import org.apache.spark.sql.catalyst.catalog.CatalogTableType$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.connector.catalog.*;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A table is a view for Spark. Its text calls the function `objcat_rows` with the name of the plan that Python has just made. So Spark needs
 * nothing new to resolve it: a view may be read by every query, and its plan may have several relations.
 */
public class ObjcatCatalog implements TableCatalog, SupportsNamespaces {
  static final String FUNCTION = "objcat_rows";
  static final int PLANS_MAX = 256;
  private static final Map plans = new Plans();
  private static long made = 0;

  private String name;
  private org.apache.spark.sql.classic.SparkSession session;
  private java.util.function.Function python;

  public void initialize(String name, CaseInsensitiveStringMap options) { this.name = name; }
  public String name() { return name; }
  public String[] defaultNamespace() { return new String[0]; }

  // ---- tables

  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    Map answer = (Map) ask("tables", dotted(namespace, null), null, null);
    if (answer.containsKey("missing")) throw new NoSuchNamespaceException(qualified(namespace));
    List names = (List) answer.get("names");
    Identifier[] found = new Identifier[names.size()];
    for (int i = 0; i < found.length; i++) found[i] = Identifier.of(namespace, (String) names.get(i));
    return found;
  }

  public boolean tableExists(Identifier ident) { return !((Map) ask("exists", dotted(ident.namespace(), ident.name()), null, null)).containsKey("missing"); }
  public Table loadTable(Identifier ident) throws NoSuchTableException { return load(ident, null, null); }
  public Table loadTable(Identifier ident, String version) throws NoSuchTableException { return load(ident, version, null); }
  public Table loadTable(Identifier ident, long micros) throws NoSuchTableException { return load(ident, null, Long.valueOf(micros)); }
  public Table loadTable(Identifier ident, Set privileges) throws NoSuchTableException { throw refused("written to"); }

  private Table load(Identifier ident, String version, Long micros) throws NoSuchTableException {
    Object answer = ask("load", dotted(ident.namespace(), ident.name()), version, micros);
    if (answer instanceof Map) throw new NoSuchTableException(ident);
    LogicalPlan plan = ((org.apache.spark.sql.classic.Dataset) answer).queryExecution().analyzed();
    String token;
    synchronized (plans) {
      token = "rows " + ++made;
      plans.put(token, new SoftReference(plan));
    }
    return new V1Table(view(ident, plan.schema(), "SELECT * FROM " + FUNCTION + "('" + token + "')"));
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

  // ---- namespaces

  public String[][] listNamespaces() { return namespaces((Map) ask("namespaces", null, null, null), new String[0]); }

  public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
    Map answer = (Map) ask("namespaces", dotted(namespace, null), null, null);
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

  public boolean namespaceExists(String[] namespace) { return !((Map) ask("properties", dotted(namespace, null), null, null)).containsKey("missing"); }

  public Map loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
    Map answer = (Map) ask("properties", dotted(namespace, null), null, null);
    if (answer.containsKey("missing")) throw new NoSuchNamespaceException(qualified(namespace));
    return (Map) answer.get("properties");
  }

  // ---- what is not supported

  public Table createTable(Identifier ident, StructType schema, Transform[] partitions, Map properties) { throw refused("created"); }
  public Table createTable(Identifier ident, Column[] columns, Transform[] partitions, Map properties) { throw refused("created"); }
  public Table createTable(Identifier ident, TableInfo info) { throw refused("created"); }
  public Table alterTable(Identifier ident, TableChange[] changes) { throw refused("altered"); }
  public boolean dropTable(Identifier ident) { throw refused("dropped"); }
  public void renameTable(Identifier before, Identifier after) { throw refused("renamed"); }
  public void createNamespace(String[] namespace, Map properties) { throw refused("created"); }
  public void alterNamespace(String[] namespace, NamespaceChange[] changes) { throw refused("altered"); }
  public boolean dropNamespace(String[] namespace, boolean cascade) { throw refused("dropped"); }

  private RuntimeException refused(String what) {
    return new UnsupportedOperationException(
        "tables and namespaces of the catalog " + name + " are not " + what + " by spark.sql: use lake.sql(text, spark); nothing was done");
  }

  // ---- calls of Python

  /** Asks Python. Returns what it says as a map, or a Dataset; throws what it refuses. */
  private Object ask(String what, String of, String version, Long micros) {
    if (python == null) {
      Map nothing = new HashMap();
      nothing.put("missing", Boolean.TRUE);
      nothing.put("names", new ArrayList());
      return nothing;
    }
    Map request = new HashMap();
    request.put("what", what);
    request.put("of", of);
    request.put("version", version);
    request.put("micros", micros);
    try {
      // While a view of the user's own is resolved, the settings are those that it was made with.
      Object answer = SQLConf$.MODULE$.withExistingConf(session.sessionState().conf(), new Asking(python, new ObjectMapper().writeValueAsString(request)));
      if (!(answer instanceof String)) return answer;
      Map said = (Map) new ObjectMapper().readValue((String) answer, Map.class);
      if (said.containsKey("refused")) throw new IllegalArgumentException((String) said.get("refused"));
      if (said.containsKey("failed")) throw new IllegalStateException((String) said.get("failed"));
      return said;
    } catch (java.io.IOException e) {
      throw new RuntimeException(e);
    }
  }

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

  static class Asking extends scala.runtime.AbstractFunction0 {
    private final java.util.function.Function python;
    private final String request;

    Asking(java.util.function.Function python, String request) {
      this.python = python;
      this.request = request;
    }

    public Object apply() { return python.apply(request); }
  }

  static class Finding extends scala.runtime.AbstractFunction0 {
    private final org.apache.spark.sql.classic.SparkSession session;
    private final String name;

    Finding(org.apache.spark.sql.classic.SparkSession session, String name) {
      this.session = session;
      this.name = name;
    }

    public Object apply() { return session.sessionState().catalogManager().catalog(name); }
  }

  /** Plans of queries that are being analysed. They are used at once; memory takes them back when it needs to. */
  static class Plans extends LinkedHashMap {
    protected boolean removeEldestEntry(Map.Entry eldest) { return size() > PLANS_MAX; }
  }

  /** The function `objcat_rows`. */
  static class Rows extends scala.runtime.AbstractFunction1 {
    public Object apply(Object arguments) {
      scala.collection.immutable.Seq given = (scala.collection.immutable.Seq) arguments;
      String token = given.size() == 1 && given.apply(0) instanceof Literal ? String.valueOf(((Literal) given.apply(0)).value()) : "";
      Object plan;
      synchronized (plans) {
        SoftReference kept = (SoftReference) plans.get(token);
        plan = kept == null ? null : kept.get();
      }
      if (plan == null) throw new IllegalStateException("no plan is known as '" + token + "', which only a query knows while it is analysed: run it again");
      return plan;
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
    /** Names a lake in a session. python: answers the questions, see views.py; null takes the name away. */
    public void register(org.apache.spark.sql.classic.SparkSession session, String name, java.util.function.Function python) {
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
      if (python == null && name.equals(session.sessionState().catalogManager().currentCatalog().name()))
        session.sessionState().catalogManager().setCurrentCatalog("spark_catalog");
    }
  }
}
