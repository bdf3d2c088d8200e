"""A sandbox for a process that has opened its files and only has to compute: it can use those files, and nothing else.

    no root        as root it becomes `nobody`, and can gain no privileges again
    limits         no new process, no core dump: soft and hard limits, so that they cannot be raised again
    network        a network namespace without a device, where the system lets us make one
    Landlock       no file can be opened, made or removed, no TCP port used          Linux 5.13, ports from 6.7
    seccomp        every system call is refused that is not in CALLS: no file, socket, process, signal or limit

Each holds by itself, so a kernel that lacks one still has the others; `enter` says which are missing. References:
Linux man pages landlock(7), seccomp(2), user_namespaces(7).
"""

import contextlib
import ctypes
import os
import platform
import resource
import struct
import sys

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 4, 38
LANDLOCK_CREATE, LANDLOCK_RESTRICT = 444, 446
NOBODY = 65534

CALLS = {
    "x86_64": (
        *(0, 1, 3, 5, 8),  # read, write, close, fstat, lseek
        *(9, 10, 11, 12, 25, 28),  # mmap, mprotect, munmap, brk, mremap, madvise
        *(13, 14, 15, 131, 219),  # rt_sigaction, rt_sigprocmask, rt_sigreturn, sigaltstack, restart_syscall
        *(17, 18, 74, 75),  # pread64, pwrite64, fsync, fdatasync
        *(
            24,
            39,
            186,
            202,
            204,
            309,
            324,
            334,
        ),  # sched_yield, getpid, gettid, futex, sched_getaffinity, getcpu, …
        *(96, 99, 228, 318),  # gettimeofday, sysinfo, clock_gettime, getrandom
        *(60, 231),  # exit, exit_group
    ),
    "aarch64": (
        *(63, 64, 57, 80, 62),
        *(222, 226, 215, 214, 216, 233),
        *(134, 135, 139, 132, 128),
        *(67, 68, 82, 83),
        *(124, 172, 178, 98, 123, 168, 283, 293),
        *(169, 179, 113, 278),
        *(93, 94),
    ),
}
"""Numbers of the system calls that reading and writing open files takes; the same order for both processors."""
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SECCOMP = {"x86_64": 317, "aarch64": 277}


def enter() -> list[str]:
    """Close the sandbox round this process, for good; returns what this system does not offer, in words."""
    if not sys.platform.startswith("linux"):
        limit()
        return ["network namespaces", "Landlock", "seccomp"]
    alone = leave_network()
    limit()
    become_nobody()
    # no core dump, and no process of the same user may look into this one
    _prctl(PR_SET_DUMPABLE, 0)
    # Landlock and seccomp demand it of a process without privileges
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    walls = {"network namespaces": alone, "Landlock": deny_files(), "seccomp": filter_calls()}
    return [name for name, holds in walls.items() if not holds]


def leave_network() -> bool:
    """Root needs no user namespace for it, and others may not be allowed one."""
    space = CLONE_NEWNET if os.geteuid() == 0 else CLONE_NEWUSER | CLONE_NEWNET
    return bool(_libc().unshare(space) == 0)


def limit() -> None:
    """Soft and hard: a soft limit alone can be raised by whoever it limits."""
    for what in (resource.RLIMIT_NPROC, resource.RLIMIT_CORE):
        resource.setrlimit(what, (0, 0))


def become_nobody() -> None:
    """Root is bound by few limits and owns most files; where `nobody` is not known, the other walls have to do."""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            # groups first: as `nobody` it could not change them any more
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)


def deny_files() -> bool:
    """A Landlock ruleset that handles all the kernel knows, and allows nothing; True if it is in force."""
    call = _libc().syscall
    # without rules and with flag 1 the call tells which version the kernel has
    version = call(LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < 1:
        return False
    # version 1 knows 13 rights on files; 2, 3 and 5 add one each: refer, truncate, ioctl
    files = (1 << (13 + (version >= 2) + (version >= 3) + (version >= 5))) - 1
    rules = struct.pack("<QQQ", files, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    # three masks: files, ports (from version 4), scopes (from version 6)
    rules = rules[: 24 if version >= 6 else 16 if version >= 4 else 8]
    ruleset = call(LANDLOCK_CREATE, rules, ctypes.c_size_t(len(rules)), ctypes.c_uint32(0))
    if ruleset < 0:
        return False
    done = bool(call(LANDLOCK_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0)) == 0)
    os.close(ruleset)
    return done


def filter_calls() -> bool:
    """A seccomp filter for all threads that answers EPERM to what is not in CALLS; True if it is in force."""
    machine = platform.machine()
    if machine not in CALLS:
        return False
    code = _program(AUDIT_ARCH[machine], CALLS[machine])
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    mode, every_thread = ctypes.c_uint(1), ctypes.c_uint(1)
    return bool(_libc().syscall(SECCOMP[machine], mode, every_thread, program) == 0)


def _program(arch: int, allowed: tuple[int, ...]) -> bytes:
    """In classic BPF: the wrong architecture kills, what is listed passes, everything else is EPERM."""
    load, equal, answer = 0x20, 0x15, 0x06
    kill, allow, refuse = 0x80000000, 0x7FFF0000, 0x00050001
    # in what seccomp shows the filter, the architecture is at offset 4, the call's number at 0
    lines = [(load, 0, 0, 4), (equal, 1, 0, arch), (answer, 0, 0, kill), (load, 0, 0, 0)]
    for number, call in enumerate(allowed):
        # a match jumps over what is left of the list, and over the refusal
        lines.append((equal, len(allowed) - number, 0, call))
    lines += [(answer, 0, 0, refuse), (answer, 0, 0, allow)]
    return b"".join(struct.pack("<HBBI", *line) for line in lines)


def _prctl(option: int, value: int) -> None:
    _libc().prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
