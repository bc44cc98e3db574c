//! The system call filter of containers that run as processes. Owns the list of what is refused.
//!
//! It is a list of what is refused and not, as container runtimes have it, of what is allowed: a
//! process pod runs the node's own programs (drivers, profilers, libraries of any age) under a
//! user without capabilities, to which the kernel refuses most of this list already. What the
//! list adds is the kernel's attack surface that an ordinary user does reach (user namespaces,
//! bpf, perf, keyrings, userfaultfd, io_uring, file handles), after the profile that Kubernetes
//! calls RuntimeDefault. NUMA calls (`mbind`, `set_mempolicy`), `process_vm_readv` and `ptrace`
//! stay allowed: NCCL and debuggers use them, and the process namespace bounds their reach.
//!
//! Two filters are installed, because one has one answer for all that it matches: the list gets
//! `EPERM`; `clone3` and the x32 numbers get `ENOSYS`, so that the C library falls back to `clone`,
//! whose flags a filter can read.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

/// System calls that are refused whatever their arguments.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
];

/// The same, of calls that this architecture alone has.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[libc::c_long] = &[
    libc::SYS_ioperm,
    libc::SYS_iopl,
    libc::SYS_modify_ldt,
    libc::SYS_sysfs,
    libc::SYS_uselib,
    libc::SYS_ustat,
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[libc::c_long] = &[];

/// What `personality` may be set to, as in RuntimeDefault: Linux, Linux with 32-bit addresses,
/// the same with `UNAME26`, and the question what it is.
const PERSONALITIES: [u64; 5] = [0x0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// The flags with which `clone` makes a namespace.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// Where x86_64's x32 numbers begin: a second way to every call, which no filter by number sees.
const X32: u32 = 0x4000_0000;

/// Why system calls are not filtered.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// The kernel does not take a filter.
    #[error("cannot filter system calls: {0}")]
    Apply(seccompiler::Error),
    /// The filter can't be put together.
    #[error("cannot filter system calls: {0}")]
    Build(seccompiler::BackendError),
}

/// Installs both filters for this thread and all that comes of it; sets `no_new_privs`.
pub fn install() -> Result<(), SeccompError> {
    seccompiler::apply_filter(&absent()).map_err(SeccompError::Apply)?;
    let refused = refused().map_err(SeccompError::Build)?;
    seccompiler::apply_filter(&refused).map_err(SeccompError::Apply)
}

/// The filter that answers `EPERM`. It also kills what calls by another architecture's numbers.
fn refused() -> Result<BpfProgram, seccompiler::BackendError> {
    let all = REFUSED.iter().chain(REFUSED_HERE);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = all.map(|call| (*call, Vec::new())).collect();
    let others = PERSONALITIES
        .iter()
        .map(|value| condition(SeccompCmpOp::Ne, *value))
        .collect::<Result<Vec<_>, _>>()?;
    rules.insert(libc::SYS_personality, vec![SeccompRule::new(others)?]);
    let namespaces = NAMESPACES
        .iter()
        .map(|flag| {
            let flag = u64::from(flag.unsigned_abs());
            SeccompRule::new(vec![condition(SeccompCmpOp::MaskedEq(flag), flag)?])
        })
        .collect::<Result<Vec<_>, _>>()?;
    rules.insert(libc::SYS_clone, namespaces);
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM.unsigned_abs()),
        TargetArch::try_from(std::env::consts::ARCH)?,
    )?;
    BpfProgram::try_from(filter)
}

/// On a call's first argument.
fn condition(
    operator: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(0, SeccompCmpArgLen::Dword, operator, value)
}

/// The filter that answers `ENOSYS`: to `clone3`, and to every number from [`X32`] on. Written in
/// the kernel's instructions, for the library compares numbers for equality alone.
fn absent() -> BpfProgram {
    const LOAD_NUMBER: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const JUMP_IF_NOT_BELOW: u16 = 0x35;
    const RETURN: u16 = 0x06;
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let clone3 = u32::try_from(libc::SYS_clone3).unwrap_or(u32::MAX);
    let no_such_call = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();
    vec![
        step(LOAD_NUMBER, 0, 0, 0),
        step(JUMP_IF_NOT_BELOW, 2, 0, X32),
        step(JUMP_IF_EQUAL, 1, 0, clone3),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(RETURN, 0, 0, no_such_call),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The longest program that the kernel takes.
    const LONGEST: usize = 4096;

    #[test]
    fn the_filters_compile_for_this_machine_and_are_short_enough_for_its_kernel() {
        for program in [refused().unwrap(), absent()] {
            assert!(!program.is_empty() && program.len() <= LONGEST);
        }
    }

    #[test]
    fn no_call_is_on_the_list_twice() {
        let mut all: Vec<_> = REFUSED.iter().chain(REFUSED_HERE).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn what_training_needs_is_not_on_the_list() {
        for needed in [
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_mbind,
            libc::SYS_set_mempolicy,
            libc::SYS_get_mempolicy,
            libc::SYS_move_pages,
            libc::SYS_mlock,
            libc::SYS_memfd_create,
            libc::SYS_sched_setaffinity,
            libc::SYS_ioctl,
            libc::SYS_prctl,
            libc::SYS_clone,
        ] {
            assert!(!REFUSED.contains(&needed), "{needed}");
        }
    }
}
