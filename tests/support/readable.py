"""How durations, ages and signals read: in the terminal, on the page, and in what agents say."""

DURATIONS = {
    -5: "0 s", 0: "0 s", 0.0004: "0 ms", 0.01: "10 ms", 0.0499: "50 ms", 0.05: "0.1 s", 0.44: "0.4 s", 1: "1 s",
    1.26: "1.3 s", 9.94: "9.9 s", 9.96: "10 s", 12.4: "12 s", 12.5: "13 s", 59.4: "59 s", 59.5: "1 min", 60: "1 min",
    61: "1 min 01 s", 200: "3 min 20 s", 3599.4: "59 min 59 s", 3599.6: "1 h", 3600: "1 h", 3659: "1 h",
    3660: "1 h 01 min", 7500: "2 h 05 min", 86_399: "23 h 59 min", 86_400: "1 d", 90_000: "1 d 1 h",
    273_600: "3 d 4 h", 864_000: "10 d",
}  # fmt: skip
AGES = {
    -5: "0 s ago", 0: "0 s ago", 5.9: "5 s ago", 119: "119 s ago", 120: "2 min ago", 200: "3 min ago",
    7199: "119 min ago", 7200: "2 h ago", 172_799: "47 h ago", 172_800: "2 d ago", 300_000: "3 d ago",
}  # fmt: skip
SIGNALS = {
    0: "signal 0", 1: "SIGHUP", 2: "SIGINT", 6: "SIGABRT", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM", 17: "SIGCHLD",
    18: "SIGCONT", 19: "SIGSTOP", 20: "SIGTSTP", 28: "SIGWINCH", 29: "SIGIO", 30: "SIGPWR", 31: "SIGSYS",
    32: "signal 32", 33: "signal 33", 34: "SIGRTMIN", 35: "signal 35", 40: "signal 40", 63: "signal 63",
    64: "SIGRTMAX", 65: "signal 65", 99: "signal 99",
}  # fmt: skip
