//! `muster open`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use std::process::Stdio;

use e2e::{Platform, muster};

use super::{SOON, started};

#[test]
fn muster_open_prints_the_address_or_leads_a_local_port_there() {
    let platform = Platform::up(&[]);
    let port = started(&platform, "web");
    let out = platform.cli(&["open", "web", "--print"]).ok();
    let server = &platform.listen;
    assert_eq!(
        out,
        format!("http://{server}/proxy/default/pods/web/{port}/\n")
    );
    let named = platform
        .cli(&["open", "pod/web", "--port", "http", "--print"])
        .ok();
    assert_eq!(named, out);
    let number = platform
        .cli(&["open", "web", "--port", "1234", "--print"])
        .ok();
    assert!(number.ends_with("/pods/web/1234/\n"), "{number}");
    let wrong = platform.cli(&["open", "web", "--port", "ui"]);
    assert!(
        wrong.err.contains(&format!("its ports are {port} (http)")),
        "{wrong:?}"
    );
    let none = platform.cli(&["open", "nothing"]);
    assert!(
        none.err.contains("no pod, job, RayCluster or Service"),
        "{none:?}"
    );

    let mut child = platform
        .command(&muster(), &["open", "web", "--forward", "--print"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let address = line
        .trim()
        .strip_prefix("http://")
        .unwrap()
        .trim_end_matches('/');
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
        .write_all(b"GET /headers HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut whole = String::new();
    stream.read_to_string(&mut whole).unwrap();
    assert!(whole.contains("\"/headers\""), "{whole}");
    child.kill().unwrap();
    child.wait().unwrap();
}
