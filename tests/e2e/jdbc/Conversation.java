// What a JDBC program does with its connection, each answer checked: arguments are port, database, user, password, and
// further parameters of the URL.

import java.io.StringReader;
import java.io.StringWriter;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import org.postgresql.PGConnection;

public class Conversation {
    public static void main(String[] words) throws Exception {
        String url = "jdbc:postgresql://127.0.0.1:" + words[0] + "/" + words[1] + "?sslmode=disable" + words[4];
        try (Connection connection = DriverManager.getConnection(url, words[2], words[3])) {
            prepared(connection);
            transaction(connection);
            failed(connection);
            cancelled(connection);
            copied(connection);
            ResultSet tables = connection.getMetaData().getTables(null, null, "jdbc_rows", null);
            check(tables.next(), "the table is not in the metadata");
            run(connection, "DROP TABLE jdbc_rows");
        }
        System.out.println("all as expected");
    }

    static void prepared(Connection connection) throws SQLException {
        // More often than the threshold from which on the driver names its statement.
        try (PreparedStatement statement = connection.prepareStatement("SELECT ?::int + 1")) {
            for (int number = 0; number < 20; number++) {
                statement.setInt(1, number);
                ResultSet rows = statement.executeQuery();
                check(rows.next() && rows.getInt(1) == number + 1, "a wrong sum");
            }
        }
    }

    static void transaction(Connection connection) throws SQLException {
        run(connection, "CREATE TABLE IF NOT EXISTS jdbc_rows (id int, note text)");
        run(connection, "TRUNCATE jdbc_rows");
        connection.setAutoCommit(false);
        try (PreparedStatement statement = connection.prepareStatement("INSERT INTO jdbc_rows VALUES (?, ?)")) {
            for (int number = 0; number < 1000; number++) {
                statement.setInt(1, number);
                statement.setString(2, "note " + number);
                statement.addBatch();
            }
            statement.executeBatch();
        }
        connection.commit();
        try (Statement statement = connection.createStatement()) {
            statement.setFetchSize(50);
            ResultSet rows = statement.executeQuery("SELECT id FROM jdbc_rows ORDER BY id");
            int expected = 0;
            while (rows.next()) {
                check(rows.getInt(1) == expected++, "rows are out of order");
            }
            check(expected == 1000, "rows are missing");
        }
        connection.commit();
    }

    static void failed(Connection connection) throws SQLException {
        try {
            run(connection, "SELECT 1 / 0");
            check(false, "a division by zero succeeded");
        } catch (SQLException error) {
            check(error.getSQLState().equals("22012"), error.getSQLState());
        }
        connection.rollback();
        connection.setAutoCommit(true);
    }

    static void cancelled(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.setQueryTimeout(1);
            statement.execute("SELECT pg_sleep(60)");
            check(false, "a cancelled query ended by itself");
        } catch (SQLException error) {
            check(error.getSQLState().equals("57014"), error.getSQLState());
        }
    }

    static void copied(Connection connection) throws Exception {
        var copies = connection.unwrap(PGConnection.class).getCopyAPI();
        check(copies.copyIn("COPY jdbc_rows FROM STDIN", new StringReader("5\ta\n6\tb\n")) == 2, "copied in");
        StringWriter out = new StringWriter();
        copies.copyOut("COPY (SELECT 1) TO STDOUT", out);
        check(out.toString().equals("1\n"), "copied out");
    }

    static void run(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    static void check(boolean isRight, String words) {
        if (!isRight) {
            throw new AssertionError(words);
        }
    }
}
