//! Notifies systemd that a server or agent is ready, that it stops, and that it still answers. Without a service manager
//! (`NOTIFY_SOCKET` is not set) nothing happens.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use systemd::{Notifier, State};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::server::RunningServer;

/// The request that a server must answer before the watchdog is notified. It needs no credentials, and a server that
/// wants TLS answers it with a redirect.
const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// Reports a started server: its address, and from then on that it answers there.
pub fn server_started(server: &RunningServer, stop: watch::Receiver<bool>) {
    let status = format!("serving at {}", server.browser_url());
    answers_at(&status, server.local_address(), stop);
}

/// Reports readiness, and from then on that the program answers HTTP requests at an address.
pub fn answers_at(status: &str, address: SocketAddr, stop: watch::Receiver<bool>) {
    started(status, stop, move || answers(address));
}

/// Reports a started agent. The watchdog finds an agent whose runtime makes no progress; an agent whose server is out
/// of reach still runs its pods, and is alive.
pub fn agent_started(status: &str, stop: watch::Receiver<bool>) {
    started(status, stop, || std::future::ready(true));
}

/// Reports readiness with a status line, the begin of the stop, and in between to the watchdog, each time that `alive`
/// says so.
fn started<A, F>(status: &str, mut stop: watch::Receiver<bool>, alive: A)
where
    A: Fn() -> F + Send + 'static,
    F: Future<Output = bool> + Send + 'static,
{
    let notifier = match Notifier::from_environment() {
        Ok(Some(notifier)) => Arc::new(notifier),
        Ok(None) => return,
        Err(error) => {
            tracing::warn!(%error, "systemd is not notified");
            return;
        }
    };
    send(&notifier, &[State::Ready, State::Status(status)]);
    match systemd::watchdog_from_environment() {
        Ok(Some(timeout)) => {
            tracing::info!(seconds = timeout.as_secs_f64(), "systemd's watchdog is on");
            let notifier = notifier.clone();
            let alive = alive_or_stopping(alive, stop.clone());
            tokio::spawn(keep_alive(timeout, alive, move || {
                send(&notifier, &[State::Watchdog]);
            }));
        }
        Ok(None) => {}
        Err(error) => tracing::warn!(%error, "systemd's watchdog is not notified"),
    }
    tokio::spawn(async move {
        if stop.wait_for(|stop| *stop).await.is_ok() {
            send(&notifier, &[State::Stopping, State::Status("stopping")]);
        }
    });
}

fn send(notifier: &Notifier, states: &[State<'_>]) {
    if let Err(error) = notifier.send(states) {
        tracing::warn!(%error, "systemd was not notified");
    }
}

/// The check `alive`, and yes without it once `stop` is true: a server that stops closes its port first, and the time
/// for the rest is bounded by the service manager's limit on a stop, not by the watchdog.
fn alive_or_stopping<A, F>(
    alive: A,
    stop: watch::Receiver<bool>,
) -> impl Fn() -> BoxFuture<'static, bool>
where
    A: Fn() -> F,
    F: Future<Output = bool> + Send + 'static,
{
    move || {
        let stopping = *stop.borrow();
        if stopping {
            std::future::ready(true).boxed()
        } else {
            alive().boxed()
        }
    }
}

/// Calls `ping` at half of the watchdog's timeout, if `alive` has said yes within a quarter of it. A process that was
/// paused pings as soon as it continues.
async fn keep_alive<A, F, P>(timeout: Duration, alive: A, ping: P)
where
    A: Fn() -> F,
    F: Future<Output = bool>,
    P: Fn(),
{
    let mut ticks = tokio::time::interval(timeout / 2);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if in_time(timeout / 4, alive()).await {
            ping();
        } else {
            tracing::error!(
                "this server does not answer its own request; systemd's watchdog restarts it if that lasts"
            );
        }
    }
}

/// Whether a check says yes before a deadline.
async fn in_time(deadline: Duration, check: impl Future<Output = bool>) -> bool {
    tokio::time::timeout(deadline, check).await == Ok(true)
}

/// Whether a server answers at an address. A connection that the server closes without an answer also counts: an
/// overloaded server closes those that exceed its limits, and a restart would not help it.
async fn answers(address: SocketAddr) -> bool {
    match TcpStream::connect(address).await {
        Ok(stream) => answers_on(stream).await,
        Err(error) => {
            tracing::warn!(%address, %error, "this server cannot be connected to");
            false
        }
    }
}

async fn answers_on<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) -> bool {
    if stream.write_all(REQUEST).await.is_err() {
        return true;
    }
    // "HTTP/1.1 5": a server error is no sign of life.
    let mut begin = [0; 10];
    match stream.read_exact(&mut begin).await {
        Ok(_) => begin[9] != b'5',
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_check_without_an_answer_in_time_counts_as_no() {
        let long = Duration::from_secs(3600);
        assert!(in_time(long, ready(true)).await);
        assert!(!in_time(long, ready(false)).await);
        assert!(!in_time(Duration::from_millis(1), pending()).await);
    }

    #[tokio::test]
    async fn the_watchdog_is_notified_only_after_a_check_that_says_yes() {
        let (pings, checks) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (done, mut enough) = watch::channel(false);
        let (counted, checked) = (pings.clone(), checks.clone());
        // Every second check says no; the tenth ends the test.
        let alive = move || {
            let number = checked.fetch_add(1, Ordering::SeqCst);
            if number == 10 {
                done.send_replace(true);
            }
            ready(number % 2 == 0 && number < 10)
        };
        let ping = move || {
            counted.fetch_add(1, Ordering::SeqCst);
        };
        tokio::select! {
            () = keep_alive(Duration::from_millis(4), alive, ping) => {}
            _ = enough.wait_for(|enough| *enough) => {}
        }
        assert_eq!(pings.load(Ordering::SeqCst), 5);
    }

    #[tokio::test]
    async fn a_server_that_stops_counts_as_alive_although_it_does_not_answer() {
        let (tell, stop) = watch::channel(false);
        let alive = alive_or_stopping(|| ready(false), stop);
        assert!(!alive().await);
        tell.send_replace(true);
        assert!(alive().await);
    }

    #[test]
    fn children_lose_the_variables_that_are_read_here() {
        for name in [
            systemd::NOTIFY_SOCKET,
            systemd::WATCHDOG_PID,
            systemd::WATCHDOG_USEC,
        ] {
            assert!(runtime::SERVICE_MANAGER_VARIABLES.contains(&name), "{name}");
        }
    }

    async fn judged(answer: Option<&str>) -> bool {
        let (ours, mut theirs) = tokio::io::duplex(4096);
        let answer = answer.map(str::to_owned);
        let server = tokio::spawn(async move {
            let mut request = vec![0; REQUEST.len()];
            let _ = theirs.read_exact(&mut request).await;
            if let Some(answer) = answer {
                let _ = theirs.write_all(answer.as_bytes()).await;
            }
        });
        let judged = answers_on(ours).await;
        let _ = server.await;
        judged
    }

    #[tokio::test]
    async fn an_answer_or_a_refusal_is_a_sign_of_life_and_a_server_error_is_none() {
        assert!(judged(Some("HTTP/1.1 200 OK\r\n\r\nok")).await);
        assert!(judged(Some("HTTP/1.1 308 Permanent Redirect\r\n\r\n")).await);
        assert!(judged(None).await);
        assert!(!judged(Some("HTTP/1.1 503 Service Unavailable\r\n\r\n")).await);
    }

    #[tokio::test]
    async fn a_port_without_a_server_does_not_answer() {
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        drop(socket);
        assert!(!answers(address).await);
    }
}
