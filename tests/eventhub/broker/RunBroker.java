import java.util.Map;
import java.util.Scanner;
import org.apache.qpid.server.SystemLauncher;
import org.apache.qpid.server.SystemLauncherListener.DefaultSystemLauncherListener;
import org.apache.qpid.server.model.Broker;
import org.apache.qpid.server.model.Connection;
import org.apache.qpid.server.model.Queue;
import org.apache.qpid.server.model.SystemConfig;
import org.apache.qpid.server.model.VirtualHost;
import org.apache.qpid.server.session.AMQPSession;
import org.apache.qpid.server.transport.AMQPConnection;
import org.apache.qpid.server.transport.AMQPConnection.CloseReason;

/**
 * Apache Qpid Broker-J in memory: {@code java RunBroker.java CONFIGURATION}. Prints its port, then runs commands from its
 * input until that ends: {@code delete QUEUE}, {@code end sessions} and {@code close connections}.
 */
class RunBroker {
    private static SystemConfig<?> system;

    public static void main(String[] arguments) throws Exception {
        new SystemLauncher(new DefaultSystemLauncherListener() {
            @Override
            public void onContainerResolve(SystemConfig<?> resolved) {
                system = resolved;
            }
        }).startup(Map.of(
            "type", "Memory", "initialConfigurationLocation", arguments[0], "startupLoggedToSystemOut", false));
        Broker<?> broker = (Broker<?>) system.getContainer();
        VirtualHost<?> host = broker.getVirtualHostNodes().iterator().next().getVirtualHost();
        System.out.println(broker.getPorts().iterator().next().getBoundPort());
        for (Scanner commands = new Scanner(System.in); commands.hasNext();) {
            String command = commands.next();
            String name = commands.next();
            if (command.equals("delete")) {
                host.getChildByName(Queue.class, name).delete();
                continue;
            }
            for (Connection<?> each : host.getConnections()) {
                AMQPConnection<?> connection = (AMQPConnection<?>) each;
                if (command.equals("close")) {
                    connection.sendConnectionCloseAsync(CloseReason.MANAGEMENT, "closed by the broker");
                    continue;
                }
                for (AMQPSession<?, ?> session : connection.getSessionModels()) {
                    connection.closeSessionAsync(session, CloseReason.MANAGEMENT, "ended by the broker");
                }
            }
        }
        System.exit(0);
    }
}
