//! A session's place in the list of open sessions, which it leaves also when its driver panics.

use std::sync::Arc;

use super::{OpenSessions, Session};

/// A session in the list. Dropping it ends the session and takes it off the list, also when the
/// session's driver panics: the node is then shown as disconnected, and its agent connects again.
pub struct RegisteredSession {
    sessions: Arc<OpenSessions>,
    session: Arc<Session>,
}

impl OpenSessions {
    /// Lists a session; ends an earlier one of its node.
    pub fn register(self: &Arc<Self>, session: Arc<Session>) -> RegisteredSession {
        let node = session.node.clone();
        let before = self.by_node.lock().insert(node, session.clone());
        if let Some(before) = before {
            before.end();
        }
        RegisteredSession {
            sessions: self.clone(),
            session,
        }
    }
}

impl Drop for RegisteredSession {
    fn drop(&mut self) {
        let session = &self.session;
        if std::thread::panicking() {
            tracing::error!(
                node = session.node,
                "a session's driver panicked; the session ends, and the agent connects again"
            );
        }
        session.end();
        session.logs.clear();
        session.requests.clear();
        self.sessions.leave(session);
    }
}

#[cfg(test)]
mod tests {
    use super::super::session_for_tests;
    use super::*;

    fn session(node: &str, id: u64) -> Arc<Session> {
        session_for_tests(node, id, "")
    }

    #[tokio::test]
    async fn a_session_whose_driver_panics_leaves_the_list_and_others_stay() {
        let sessions: Arc<OpenSessions> = Arc::default();
        let panics = sessions.register(session("n1", 1));
        let ended = panics.session.ended.subscribe();
        let stays = sessions.register(session("n2", 2));
        assert_eq!(sessions.nodes(), ["n1", "n2"]);
        let driver = tokio::spawn(async move {
            let _registered = panics;
            panic!("over a pod");
        });
        assert!(driver.await.unwrap_err().is_panic());
        assert_eq!(sessions.nodes(), ["n2"]);
        assert!(*ended.borrow());
        // A session that was replaced leaves its successor in the list.
        let successor = sessions.register(session("n2", 3));
        drop(stays);
        assert_eq!(sessions.nodes(), ["n2"]);
        drop(successor);
        assert!(sessions.nodes().is_empty());
    }
}
