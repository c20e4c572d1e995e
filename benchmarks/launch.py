"""Run one command and print its cost as JSON: ``python launch.py COMMAND [ARGUMENT ...]``.

This is a small process of its own because of memory: until a child begins its own program, its peak includes the memory
of the process that started it.
"""

import json
import os
import subprocess
import sys
from time import perf_counter

if __name__ == "__main__":
    began_s = perf_counter()
    with subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = perf_counter() - began_s
        process.returncode = os.waitstatus_to_exitcode(status)
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    cpu_s = usage.ru_utime + usage.ru_stime
    print(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s, "peak_bytes": usage.ru_maxrss * unit_bytes}))
    sys.exit(process.returncode)
