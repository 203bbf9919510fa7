"""Confine this process, layer by layer: namespaces, Landlock, seccomp, limits. Linux only; each call raises on failure.

Runs inside the worker before any model code, through ctypes, with nothing installed. Numbers are of the kernel's stable
interface:
linux/sched.h, linux/mount.h, linux/landlock.h, linux/seccomp.h, and the syscall tables of x86-64 and arm64.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sys
from collections.abc import Mapping, Sequence

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = (
    1, 2, 4, 8, 32, 4096, 16384, 1 << 18,
)  # fmt: skip
_MNT_DETACH = 2
_SIGKILL = 9


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _call(name: str, *arguments: object) -> int:
    return _check(getattr(_libc, name)(*arguments), name)


def _prctl(option: int, argument: object) -> None:
    _call("prctl", option, argument, *[ctypes.c_ulong(0)] * 3)


def _raw_syscall(what: str, number: int, *arguments: object) -> int:
    return _check(_libc.syscall(ctypes.c_long(number), *arguments), what)


def die_with_parent() -> None:
    """Die when the parent does. The kernel forgets this at every change of user, so call it after one."""
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(_SIGKILL))


def no_new_privs() -> None:
    """Forbid gaining rights through setuid programs. Required by Landlock and seccomp."""
    _prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1))


def not_traceable() -> None:
    """Keep other processes of the same user from tracing this one or writing its memory."""
    _prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(0))


def readable_paths() -> list[str]:
    """Return the outermost paths that Python reads to import its standard library."""
    wanted = [*sys.path, os.path.join(sys.base_prefix, "lib")]
    wanted += ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib"]
    wanted += ["/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo"]
    real = {os.path.realpath(path) for path in wanted if os.path.exists(path)}
    return sorted(path for path in real if not any(path != other and path.startswith(other + "/") for other in real))


DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


def enter_namespaces() -> None:
    """Enter private network, mount, IPC, UTS and PID namespaces; the next child is PID 1.

    When PID 1 ends, the kernel kills all of its descendants, however they were started. Without root, a user namespace
    is added, which grants the rights for the rest.
    """
    uid, gid = os.geteuid(), os.getegid()
    flags = _NEWNS | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET
    if uid != 0:
        flags |= _NEWUSER
    _call("unshare", flags)
    if uid != 0:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")


def _write(path: str, text: str) -> None:
    handle = os.open(path, os.O_WRONLY)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def make_root(box: str, uid: int, gid: int, disk_mb: int) -> str:
    """Replace the root by the read-only standard library and an empty folder in memory; return that folder's path.

    Needs the mount namespace. No other file of the machine has a name afterwards, including /proc.
    """
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", box, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=1m")
    for path in [*readable_paths(), *DEVICES]:
        if not os.path.exists(path):
            continue
        inside = box + path
        os.makedirs(inside if os.path.isdir(path) else os.path.dirname(inside), exist_ok=True)
        if not os.path.isdir(path):
            os.close(os.open(inside, os.O_CREAT | os.O_WRONLY))
        _mount(path, inside, None, _MS_BIND | _MS_REC)
        if path not in DEVICES:
            # A bind keeps the flags its source is locked to; asking for fewer is refused in a user namespace.
            kept = os.statvfs(path).f_flag & (_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
            _mount(None, inside, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | kept)
    for link in ("/lib", "/lib64"):
        if os.path.islink(link) and not os.path.lexists(box + link):
            os.symlink(os.readlink(link), box + link)
    for folder in ("/box", "/old"):
        os.mkdir(box + folder)
    options = f"mode=700,uid={uid},gid={gid},size={disk_mb}m,nr_inodes=4096"
    _mount("tmpfs", box + "/box", "tmpfs", _MS_NOSUID | _MS_NODEV, options)
    numbers = {"x86_64": 155, "aarch64": 41}
    _raw_syscall("pivot_root", numbers[platform.machine()], _path(box), _path(box + "/old"))
    os.chdir("/")
    _call("umount2", b"/old", _MNT_DETACH)
    os.rmdir("/old")
    _mount(None, "/", None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
    return "/box"


def _path(path: str) -> ctypes.c_char_p:
    return ctypes.c_char_p(os.fsencode(path))


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
    result = _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3])
    _check(result, f"mount {target}")


def switch_user(uid: int) -> None:
    """Give up root for a user that owns nothing. Needs root."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def drop_capabilities() -> None:
    """Drop the capabilities that a new user namespace grants."""
    header = struct.pack("Ii", 0x20080522, 0)
    _call("capset", header, struct.pack("6I", *[0] * 6))


# -- Landlock ---------------------------------------------------------------------------------------------------

_LL_CREATE, _LL_ADD, _LL_RESTRICT = 444, 445, 446
_READ = 1 << 2 | 1 << 3
_ON_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15


def landlock(box: str) -> int:
    """Allow reading only the standard library and writing only `box`; no TCP, no signals out. Return the ABI version.

    Which rights exist depends on the kernel: files since ABI 1, TCP since 4, signals since 6.
    """
    abi = _raw_syscall("landlock", _LL_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    files = (1 << (13 if abi < 2 else 14 if abi < 3 else 15 if abi < 5 else 16)) - 1
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    rules = struct.pack("QQQ", files, 3, 3)[:size]
    ruleset = _raw_syscall("landlock_create_ruleset", _LL_CREATE, rules, ctypes.c_size_t(size), ctypes.c_uint(0))
    try:
        for path in readable_paths():
            _allow(ruleset, path, _READ & files)
        for path in DEVICES:
            _allow(ruleset, path, (1 << 1 | 1 << 2) & files)
        # Everything in the box except executing files and making devices.
        _allow(ruleset, box, files & ~(1 << 0 | 1 << 6 | 1 << 11))
        _raw_syscall("landlock_restrict_self", _LL_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint(0))
    finally:
        os.close(ruleset)
    return abi


def _allow(ruleset: int, path: str, rights: int) -> None:
    if not os.path.exists(path):
        return
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(path):
            rights &= _ON_FILES
        rule = struct.pack("=Qi", rights, handle)
        _raw_syscall(f"landlock {path}", _LL_ADD, ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint(0))
    finally:
        os.close(handle)


# -- seccomp ----------------------------------------------------------------------------------------------------

# Calls by architecture (x86-64, arm64); None where it does not exist. Grouped by what they would give.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    # the network, and io_uring, which can open sockets without the call of that name
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "io_uring_setup": (425, 425),
    # other processes: start one, signal one, look into one, leave the group that is killed
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "setsid": (112, 157), "setpgid": (109, 154),
    # memory that outlives the process or escapes its limits
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180), "memfd_create": (319, 279),
    # the kernel's larger doors
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsmount": (432, 432), "mount_setattr": (442, 442), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
}  # fmt: skip
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_CLONE_THREAD = 0x10000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_EPERM, _ENOSYS = 1, 38
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06


def seccomp() -> None:
    """Allow one process with many threads and no network: the calls above fail with EPERM from here on.

    For the process that runs model code, just before it does; its parent still has to fork.
    """
    machine = platform.machine()
    if machine not in _AUDIT_ARCH:
        raise OSError(_ENOSYS, f"no table of system calls for {machine}")
    column = 0 if machine == "x86_64" else 1
    denied = sorted(number for numbers in _DENIED.values() if (number := numbers[column]) is not None)
    refuse, unknown = _ERRNO | _EPERM, _ERRNO | _ENOSYS
    program = [
        (_LOAD, 0, 0, 4),  # seccomp_data.arch
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, 0),  # seccomp_data.nr
        (_JUMP_AT_LEAST, 0, 1, 0x40000000),  # the x32 numbers of x86-64
        (_RETURN, 0, 0, refuse),
        # Flags of clone3 lie in memory, out of a filter's sight; the C library falls back to clone.
        (_JUMP_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, unknown),
        (_JUMP_EQUAL, 0, 4, _CLONE[machine]),
        (_LOAD, 0, 0, 16),  # low half of the first argument
        (_JUMP_BITS, 0, 1, _CLONE_THREAD),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, refuse),
    ]
    for number in denied:
        program += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, refuse)]
    program.append((_RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    result = _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(2), ctypes.c_char_p(header), *[ctypes.c_ulong(0)] * 2)
    _check(result, "seccomp")


# -- limits -----------------------------------------------------------------------------------------------------


def set_limits(limits: Mapping[str, int]) -> None:
    """Set resource limits: `memory_mb`, `cpu_seconds`, `file_mb`, `processes`, `files`; no core dumps."""
    memory = limits["memory_mb"] << 20
    wanted: Sequence[tuple[int, int]] = (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, limits["file_mb"] << 20),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_NOFILE, limits["files"]),
        (resource.RLIMIT_CORE, 0),
    )
    for what, amount in wanted:
        _, hard = resource.getrlimit(what)
        bound = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
        resource.setrlimit(what, (bound, bound))
    # At the hard limit the kernel kills; the soft one a second earlier says why.
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    seconds = limits["cpu_seconds"] + 1
    bound = seconds if hard == resource.RLIM_INFINITY else min(seconds, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (max(1, bound - 1), bound))
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    deep = 64 << 20
    resource.setrlimit(resource.RLIMIT_STACK, (deep if hard == resource.RLIM_INFINITY else min(deep, hard), hard))


def extend_cpu_time(seconds: float) -> None:
    """Move the soft limit on CPU time to so many seconds from now; model code can too, but not past the hard limit."""
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (min(hard - 1, int(used + seconds) + 1), hard))


def count_tasks(uid: int) -> int:
    """Count the processes and threads of a user on this machine."""
    count = 0
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                # It ended while it was being counted.
                continue
    return count
