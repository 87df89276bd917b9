"""Run the live tests of Microsoft's Go SDK against the emulator, a part of `make sdk-tests`.

The tests are part of the module, in the version that `tests/emulator/go_client` requires. They are not copied into this
repository. The emulator listens on the service's own ports, 5671 and 443, because the tests cannot use others.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from spark_ehbalance.emulator import Emulator

CLIENT = Path(__file__).resolve().parents[1] / "tests" / "emulator" / "go_client"
MODULE = "github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"

PACKAGES = (".", "./internal")

#: The tests that connect.
LIVE = "^Test(ConsumerClient|ProducerClient|Clients|Link|Recovery)"

#: Test → why it cannot be run against the emulator.
NOT_APPLICABLE = {
    "TestConsumerClient_Detaches": "disables the hub through Azure's resource manager",
    "TestConsumerClient_GeoReplication": "needs a replicated namespace, and storage with Entra ID",
    "Test(Consumer|Producer)ClientUsingCustomEndpoint": "expects that nothing listens on 127.0.0.1:5671",
    "TestClientsUnauthorizedCreds/(ListenOnly|SendOnly)": "all keys of the emulator allow both sending and listening",
    "TestLinksCBSLinkStillOpen": "it is not known how the service refuses a second link to $cbs",
    "TestProcessor": "stores its checkpoints with Entra ID",
}


def main() -> int:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        print("The tests of the Go SDK are skipped: there is no `go`")
        return 0
    download = [go, "mod", "download", "-json", MODULE]
    source = json.loads(subprocess.run(download, cwd=CLIENT, stdout=subprocess.PIPE, check=True).stdout)["Dir"]
    # fetches the tests' dependencies now, because `SSL_CERT_FILE` would prevent it later
    subprocess.run([go, "test", "-run=^$", *PACKAGES], cwd=source, stdout=subprocess.DEVNULL, check=True)
    try:
        with Emulator({"hub": 4, "links": 1}, tls=True, port=5671, websocket_port=443) as emulator:
            return run([go, "test", "-v", "-count=1", "-timeout=5m"], source, emulator)
    except OSError as error:
        print(f"The tests of the Go SDK are skipped: {error}")
        return 0


def run(command: list[str], source: str, emulator: Emulator) -> int:
    key, string = "EVENTHUB_CONNECTION_STRING", "Endpoint=sb://localhost/;SharedAccessKeyName=name;SharedAccessKey=key"
    unused = ("RESOURCE_GROUP", "AZURE_SUBSCRIPTION_ID", "CHECKPOINTSTORE_STORAGE_ENDPOINT")
    environment = os.environ | dict.fromkeys((key, f"{key}_LISTEN_ONLY", f"{key}_SEND_ONLY"), string)
    environment |= dict.fromkeys(unused, "unused")
    environment |= {
        "AZURE_RECORD_MODE": "playback",  # uses a credential with fake tokens in place of Entra ID
        "EVENTHUB_NAMESPACE": "localhost",
        "EVENTHUB_NAME": "hub",
        "EVENTHUB_LINKSONLY_NAME": "links",
        "SSL_CERT_FILE": str(emulator.ca_file),
    }
    command += ["-run", LIVE, "-skip", "|".join(NOT_APPLICABLE), *PACKAGES]
    done = subprocess.run(command, cwd=source, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(done.stdout)
    for name, reason in NOT_APPLICABLE.items():
        print(f"not applicable: {name}: {reason}")
    passed, failed = (len(re.findall(f"^--- {what}: ", done.stdout, re.MULTILINE)) for what in ("PASS", "FAIL"))
    print(f"Go: {passed} passed, {failed} failed")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
