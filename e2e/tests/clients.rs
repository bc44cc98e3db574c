//! Real clients, unchanged: the Python kubernetes client, the kubeflow-training SDK, and
//! a browser.

use e2e::{Platform, python, repository, run};

fn client(platform: &Platform, script: &str, arguments: &[&str]) -> String {
    let path = repository().join("e2e/clients").join(script);
    let path = path.display().to_string();
    let mut all = vec![path.as_str()];
    all.extend(arguments);
    run(&mut platform.command(&python(), &all)).ok()
}

#[test]
fn the_python_kubernetes_client_works_unchanged() {
    let platform = Platform::up(&[]);
    let out = client(&platform, "kubernetes_client.py", &[]);
    assert!(out.contains("kubernetes client done"), "{out}");
}

#[test]
fn the_kubeflow_training_sdk_creates_a_job_waits_for_it_and_reads_its_logs() {
    // The SDK always names an image; the administrator lets its command run on the host.
    let platform = Platform::up(&["--host-images"]);
    let out = client(&platform, "training_sdk.py", &[]);
    assert!(out.contains("training SDK done"), "{out}");
}

#[test]
fn in_a_browser_one_signs_in_submits_watches_reads_a_log_and_cancels() {
    let machine = repository().join("packaging/examples/machines/4x-h100.toml");
    let described = std::fs::read_to_string(machine).unwrap();
    let doing = "[[gpu]]\ncelsius = 45\nwatts = 120\nwatts_limit = 700\nutilisation = 0";
    let directory = tempfile::tempdir().unwrap();
    let machine = directory.path().join("machine.toml");
    std::fs::write(&machine, described.replace("[[gpu]]", doing)).unwrap();
    let platform = Platform::up(&["--machine", &machine.display().to_string()]);
    let shots = repository().join("target/screens");
    std::fs::create_dir_all(&shots).unwrap();
    let url = format!("http://{}/", platform.listen);
    let shots = shots.display().to_string();
    let out = client(
        &platform,
        "browser.py",
        &[&url, &platform.password(), &shots],
    );
    assert!(out.contains("browser walk done"), "{out}");
}
