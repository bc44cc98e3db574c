//! What a person is told when the server is ready.

use super::layout::Layout;
use super::server::Server;

/// Prints where to go and what to type.
pub fn announce(server: &Server, layout: &Layout) {
    let url = server.browser_url();
    println!("muster is up: {url}");
    println!("  kubeconfig  {}", layout.admin_kubeconfig().display());
    // Never the password itself: what is printed here is kept in logs.
    if layout.first_password().is_file() {
        println!(
            "  sign in as  {} with the password in {}",
            identity::FIRST_ADMIN,
            layout.first_password().display()
        );
    }
    println!(
        "  stop        Ctrl-C, or kill {}; what runs goes on",
        std::process::id()
    );
}
