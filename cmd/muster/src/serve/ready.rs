//! The message for the user when the server is ready.

use super::layout::FileLayout;
use super::server::RunningServer;

/// Prints the web UI's address and the next commands.
pub fn announce(server: &RunningServer, layout: &FileLayout) {
    let url = server.browser_url();
    println!("muster is up: {url}");
    println!("  kubeconfig  {}", layout.admin_kubeconfig().display());
    // Never the password itself, because logs keep this output.
    if layout.first_password().is_file() {
        println!(
            "  sign in as  {} with the password in {}",
            identity::FIRST_ADMIN,
            layout.first_password().display()
        );
    }
    println!(
        "  stop        Ctrl-C, or kill {}; pods keep running",
        std::process::id()
    );
}
