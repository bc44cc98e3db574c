//! What a person is told when the server is ready.

use super::layout::Layout;
use super::server::Server;

/// Prints where to go and what to type.
pub fn announce(server: &Server, layout: &Layout) {
    let url = server.browser_url();
    println!("muster is up: {url}");
    println!("  kubeconfig  {}", layout.admin_kubeconfig().display());
    match &server.first_admin {
        Some(first) => println!(
            "  sign in as  {} with password {} (kept in {})",
            first.user,
            first.password,
            layout.first_password().display()
        ),
        None if layout.first_password().is_file() => println!(
            "  sign in as  {} with the password in {}",
            identity::FIRST_ADMIN,
            layout.first_password().display()
        ),
        None => {}
    }
    println!(
        "  stop        Ctrl-C, or kill {}; what runs goes on",
        std::process::id()
    );
}
