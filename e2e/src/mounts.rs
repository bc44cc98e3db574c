//! A mount namespace for one test, in which files of the machine are replaced.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run;

/// Shell commands that give a mount namespace a `/dev` with this machine's files, and with what `more` adds to
/// `$DIR/dev`, which becomes it.
pub fn device_files(more: &str) -> String {
    format!(
        r#"
    mkdir "$DIR/dev"
    mount -t tmpfs none "$DIR/dev"
    for entry in /dev/*; do
        at="$DIR/dev/${{entry#/dev/}}"
        if [ -L "$entry" ]; then cp -P "$entry" "$at"
        elif [ -d "$entry" ]; then mkdir "$at"; mount --rbind "$entry" "$at"
        else touch "$at"; mount --bind "$entry" "$at"; fi
    done
    {more}
    mount --rbind "$DIR/dev" /dev
"#
    )
}

/// A mount namespace that a file keeps alive until it is dropped.
pub struct Mounts {
    directory: PathBuf,
}

impl Mounts {
    /// A mount namespace, kept in `directory`/namespace, in which a shell has run this script with
    /// `directory` as `$DIR`.
    #[track_caller]
    pub fn new(directory: &Path, script: &str) -> Mounts {
        crate::require_root();
        let own = r#"
            set -e
            mkdir -p "$DIR/namespace"
            mount --bind "$DIR/namespace" "$DIR/namespace"
            mount --make-private "$DIR/namespace"
            touch "$DIR/namespace/mount"
            unshare --mount="$DIR/namespace/mount" --propagation private sh -e -c "$SCRIPT"
        "#;
        let mut shell = Command::new("sh");
        shell.args(["-c", own]).env("DIR", directory);
        run(shell.env("SCRIPT", script)).ok();
        Mounts {
            directory: directory.to_path_buf(),
        }
    }

    /// The file of the namespace.
    pub fn file(&self) -> PathBuf {
        self.directory.join("namespace/mount")
    }

    /// A command that runs in a namespace of this file.
    pub fn command_in(file: &Path, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount={}", file.display()))
            .arg(program);
        command
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for mounted in [self.file(), self.directory.join("namespace")] {
            run(Command::new("umount").args(["--lazy"]).arg(mounted));
        }
    }
}
