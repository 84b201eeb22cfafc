"""Find hosts by DNS, in files and by programs."""

from tflaunch.feature import Feature

FEATURE = Feature(discover={"dns": ".engines:Dns", "file": ".engines:File", "exec": ".engines:Exec"})
