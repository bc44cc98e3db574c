//! The messages of Kubernetes' remote command protocol over WebSocket: the first byte of each is its
//! channel. Pure.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::exec_opener::ExecInput;

const INPUT: u8 = 0;
const OUTPUT: u8 = 1;
const ERRORS: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;
/// Only in v5: the second byte names the channel that ends.
const CLOSE: u8 = 255;

/// The content of a client's message; none if it has no meaning here.
pub(super) fn read(message: &Bytes) -> Option<ExecInput> {
    let channel = *message.first()?;
    let content = message.slice(1..);
    match channel {
        // Clients open a channel with an empty message.
        INPUT if content.is_empty() => None,
        INPUT => Some(ExecInput::Data(content)),
        RESIZE => {
            let size: Value = serde_json::from_slice(&content).ok()?;
            let count = |name: &str| {
                size[name]
                    .as_u64()
                    .and_then(|count| u16::try_from(count).ok())
            };
            Some(ExecInput::Resize {
                width: count("Width")?,
                height: count("Height")?,
            })
        }
        CLOSE if content.first() == Some(&INPUT) => Some(ExecInput::End),
        _ => None,
    }
}

/// A message with a piece of the standard output.
pub(super) fn output(data: &[u8]) -> Bytes {
    on(OUTPUT, data)
}

/// A message with a piece of the standard error.
pub(super) fn errors(data: &[u8]) -> Bytes {
    on(ERRORS, data)
}

/// The last message of a command that has ended.
pub(super) fn exited(code: i32) -> Bytes {
    let status = match code {
        0 => json!({"metadata": {}, "status": "Success"}),
        code => json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        }),
    };
    on(STATUS, status.to_string().as_bytes())
}

/// The last message if the command's end is not known.
pub(super) fn failed(why: &str) -> Bytes {
    let status = json!({
        "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500, "message": why,
    });
    on(STATUS, status.to_string().as_bytes())
}

fn on(channel: u8, data: &[u8]) -> Bytes {
    let mut message = Vec::with_capacity(data.len() + 1);
    message.push(channel);
    message.extend_from_slice(data);
    message.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_by_their_channel() {
        let cases: [(&[u8], Option<ExecInput>); 9] = [
            (
                b"\x00ls\n",
                Some(ExecInput::Data(Bytes::from_static(b"ls\n"))),
            ),
            (b"\x00", None),
            (b"", None),
            (b"\x01out", None),
            (
                b"\x04{\"Width\":120,\"Height\":40}",
                Some(ExecInput::Resize {
                    width: 120,
                    height: 40,
                }),
            ),
            (b"\x04{\"Width\":70000,\"Height\":40}", None),
            (b"\x04nonsense", None),
            (b"\xff\x00", Some(ExecInput::End)),
            (b"\xff\x01", None),
        ];
        for (message, expected) in cases {
            assert_eq!(
                read(&Bytes::copy_from_slice(message)),
                expected,
                "{message:?}"
            );
        }
    }

    #[test]
    fn the_end_of_a_command_is_a_status_with_its_exit_code() {
        let status = |message: Bytes| -> Value {
            assert_eq!(message[0], STATUS);
            serde_json::from_slice(&message[1..]).unwrap()
        };
        assert_eq!(status(exited(0))["status"], "Success");
        let failure = status(exited(7));
        assert_eq!(failure["reason"], "NonZeroExitCode");
        assert_eq!(
            failure["details"]["causes"][0],
            json!({"reason": "ExitCode", "message": "7"})
        );
        assert_eq!(
            status(failed("the node is gone"))["message"],
            "the node is gone"
        );
        assert_eq!(&output(b"x")[..], b"\x01x");
        assert_eq!(&errors(b"x")[..], b"\x02x");
    }

    proptest::proptest! {
        #[test]
        fn no_message_of_a_client_panics(
            message in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64),
            size in "[0-9{}\":,WidthHeigt.eE+-]{0,40}",
            (width, height) in proptest::prelude::any::<(u16, u16)>(),
        ) {
            for message in [message, [&[RESIZE][..], size.as_bytes()].concat()] {
                let message = Bytes::from(message);
                if let Some(ExecInput::Data(data)) = read(&message) {
                    // It is the client's bytes, and no copy of them.
                    proptest::prop_assert_eq!(on(INPUT, &data), message);
                }
            }
            let asked = json!({"Width": width, "Height": height}).to_string();
            let wanted = Some(ExecInput::Resize { width, height });
            proptest::prop_assert_eq!(read(&on(RESIZE, asked.as_bytes())), wanted);
        }
    }

    #[test]
    fn a_size_that_nests_deeply_is_no_size() {
        let deep = [&[RESIZE][..], "[".repeat(1 << 20).as_bytes()].concat();
        assert_eq!(read(&Bytes::from(deep)), None);
    }
}
