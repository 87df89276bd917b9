"""Copy Delta's jars into the virtual environment's pyspark, compile pyspark's modules, and check that Delta works.

setup.sh runs this with the virtual environment's Python. Jars in ``pyspark/jars`` are on the class path of every Spark
that starts from this environment (``SparkSession.builder``, ``spark-submit``, ``pyspark``, and executors), so no job
needs ``spark.jars``, a network or Ivy. If the jars were in another folder, every job would have to name it, and
``spark.jars.packages`` would resolve them again at every start.
"""

import compileall
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from spark_ehbalance.exactly_once.spark_settings import EXCLUDES
from spark_ehbalance.spark_versions import delta_jar

SPARK = Path(pyspark.__file__).parent
ARCHIVE = SPARK / "python" / "lib" / "pyspark.zip"
IVY = Path(sys.prefix) / "ivy"
LOG = Path(sys.prefix) / "fetch_jars.log"

# The groups of the jars that Delta needs.
GROUPS = ("io.delta", "io.unitycatalog")

TRY_OUT = """
import sys
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .getOrCreate()
)
spark.range(3).write.format("delta").save(sys.argv[1])
assert spark.read.format("delta").load(sys.argv[1]).count() == 3
spark.stop()
"""


def run(*command: str | Path) -> None:
    """Run a command with this environment's Spark, and log its output. If it fails, exit with the end of the log."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment["SPARK_HOME"] = str(SPARK)
    with LOG.open("a") as log:
        code = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=600).returncode
    if code:
        end = "\n".join(LOG.read_text(errors="replace").splitlines()[-40:])
        sys.exit(f"{end}\nsetup: could not get Delta's jars to work; the whole log is in {LOG}")


def resolve(delta: str, script: Path) -> list[Path]:
    """Fetch the jars of `delta`, a Maven coordinate, with Spark's Ivy. Returns the jars that Spark does not have."""
    script.write_text("")  # spark-submit resolves packages before it runs a script, here an empty one
    shutil.rmtree(IVY / "jars", ignore_errors=True)  # removes jars of an earlier version, but not the cache
    options = {
        "spark.jars.packages": delta,
        "spark.jars.ivy": str(IVY),
        "spark.jars.excludes": ",".join(EXCLUDES),
    }
    confs = [part for key, value in options.items() for part in ("--conf", f"{key}={value}")]
    run(SPARK / "bin" / "spark-submit", "--master", "local[1]", *confs, script)
    return [jar for jar in sorted((IVY / "jars").glob("*.jar")) if jar.name.startswith(tuple(f"{g}_" for g in GROUPS))]


def install(jars: list[Path]) -> None:
    """Copy the jars to Spark's jars, and remove the jars of an earlier version.

    A jar that already exists is not replaced, because a running Spark could have it open.
    """
    folder = SPARK / "jars"
    targets = {folder / re.sub(r"^[^_]+_", "", jar.name): jar for jar in jars}  # Ivy puts the group before the name
    for present in [*folder.glob("delta-*.jar"), *folder.glob("unitycatalog-*.jar")]:
        if present not in targets:
            present.unlink()
    for target, jar in targets.items():
        if not target.exists() or target.stat().st_size != jar.stat().st_size:
            partial = target.with_suffix(".partial")
            shutil.copyfile(jar, partial)
            partial.replace(target)


def compile_archive() -> None:
    """Add bytecode to the archive from which Spark's Python processes import, so that they do not spend 1.2 s each on
    compiling it."""
    with tempfile.TemporaryDirectory() as folder:
        modules = Path(folder) / "modules"
        shutil.unpack_archive(ARCHIVE, modules)
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(
            modules, rx=re.compile("/tests/"), stripdir=modules, legacy=True, quiet=1, invalidation_mode=unchecked
        )
        partial = shutil.make_archive(str(ARCHIVE.with_suffix(".partial")), "zip", modules)
        Path(partial).replace(ARCHIVE)


def main() -> None:
    compile_archive()
    delta = delta_jar(pyspark.__version__)
    if delta is None:
        print(f"setup: Delta is not available for Spark {pyspark.__version__}")
        return
    LOG.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        jars = resolve(delta, script)
        install(jars)
        script.write_text(TRY_OUT)
        run(sys.executable, script, Path(folder) / "table")


if __name__ == "__main__":
    main()
