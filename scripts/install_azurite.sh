#!/usr/bin/env bash
# Installs Azurite, a local Azure Storage, and the event processor of Azure's JavaScript SDK into .venv. If Maven is
# available, also has it fetch the event processor of the Java SDK, and an AMQP broker, into its own repository. Called
# by setup.sh.
#
# Tests, benchmarks and the contention scenario use them. Without Node, or if npm or Maven fails, they skip the parts
# that need them. If EHBALANCE_REQUIRE_AZURITE is set, as in CI, that is an error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=3.37.0 # 3.35 lacks `startFrom`, with which delta-rs lists a log; 3.37 requests Node 22, but runs on 20
sdk=("@azure/event-hubs@6.0.4" "@azure/eventhubs-checkpointstore-blob@2.0.0" "@azure/storage-blob@12.33.0")
folder=$PWD/.venv/azurite
installed=$folder/$version-sdks-broker.installed

fail() {
    echo "setup: $1" >&2
    [[ -z ${EHBALANCE_REQUIRE_AZURITE:-} ]]
    exit
}

[[ -f $installed ]] && exit
major=$(node --version 2>/dev/null </dev/null | sed 's/^v\([0-9]*\).*/\1/') || major=
if ((${major:-0} < 20)) || ! command -v npm >/dev/null; then
    [[ -n ${EHBALANCE_REQUIRE_AZURITE:-} ]] || exit 0
    fail 'Node 20 or newer with npm is needed for Azurite.'
fi
echo "setup: installing Azurite $version"
rm -rf "$folder"
npm install --prefix "$folder" --no-package-lock --no-save --no-audit --no-fund --ignore-scripts --omit=optional \
    --engine-strict=false --fetch-retries=1 --loglevel=error "azurite@$version" "${sdk[@]}" </dev/null >/dev/null || fail 'npm could not install Azurite.'
if command -v mvn >/dev/null; then
    for project in tests/processors tests/eventhub/broker; do
        mvn -q -B -f "$project/pom.xml" dependency:build-classpath </dev/null >/dev/null ||
            fail "Maven could not fetch the jars of $project."
    done
fi
touch "$installed"
