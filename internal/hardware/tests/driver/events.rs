//! Listeners get XIDs as they happen.

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;

use hardware::{GpuEvents, InventorySources};

use crate::standin::StandIn;

#[test]
fn an_xid_is_told_once_when_it_happens_and_not_those_of_before() {
    let standin = StandIn::of("8x-l4.toml");
    standin.with("[[state]]\ngpu = 5\nxids = [13]\n");
    let nvml = standin.nvml();
    let mut set = nvml.create_event_set().unwrap();
    for index in 0..8 {
        let gpu = nvml.device_by_index(index).unwrap();
        set = gpu
            .register_events(EventTypes::CRITICAL_XID_ERROR, set)
            .map_err(|error| error.error)
            .unwrap();
    }
    assert!(matches!(set.wait(1), Err(NvmlError::Timeout)));
    standin.with("[[state]]\ngpu = 5\nxids = [13, 79]\n");
    let event = set.wait(10_000).unwrap();
    assert_eq!(event.device.index().unwrap(), 5);
    assert!(event.event_type.contains(EventTypes::CRITICAL_XID_ERROR));
    let said = format!("{:?}", event.event_data);
    assert!(
        matches!(event.event_data, Some(XidError::Value(79))),
        "{said}"
    );
    assert!(matches!(set.wait(1), Err(NvmlError::Timeout)));
}

#[test]
fn what_cannot_be_listened_for_is_refused() {
    let standin = StandIn::of("8x-l4.toml");
    let nvml = standin.nvml();
    let set = nvml.create_event_set().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    let refused = gpu.register_events(EventTypes::CLOCK_CHANGE, set);
    assert!(matches!(
        refused.map(|_| ()).unwrap_err().error,
        NvmlError::NotSupported
    ));
}

/// The next XID within ten seconds.
fn heard(events: &mut GpuEvents) -> Option<(String, u64)> {
    let xid = events.wait(std::time::Duration::from_secs(10)).unwrap();
    xid.map(|xid| (xid.gpu, xid.number))
}

#[test]
fn the_agents_ears_hear_each_xid_once_though_a_gpu_is_lost_also_of_a_described_machine() {
    let standin = StandIn::of("8x-l4.toml");
    let lost = "[[state]]\ngpu = 3\nlost = true\n[[state]]\ngpu = 5\nxids = ";
    standin.with(&format!("{lost}[13]\n"));
    let id = standin.described().inventory.gpus[5].id.clone();
    for source in [
        InventorySources {
            library: Some(standin.library()),
            ..InventorySources::default()
        },
        InventorySources {
            description: Some(standin.description()),
            ..InventorySources::default()
        },
    ] {
        standin.with(&format!("{lost}[13]\n"));
        let through_driver = source.description.is_none();
        let mut events = GpuEvents::listen(&source).unwrap();
        // One GPU refuses the registration, which does not affect the others.
        assert_eq!(events.complete(), !through_driver);
        assert_eq!(events.wait(std::time::Duration::from_millis(1)), Ok(None));
        standin.with(&format!("{lost}[13, 79, 94]\n"));
        assert_eq!(heard(&mut events), Some((id.clone(), 79)));
        assert_eq!(heard(&mut events), Some((id.clone(), 94)));
        assert_eq!(events.wait(std::time::Duration::from_millis(1)), Ok(None));
    }
    let nowhere = InventorySources {
        library: Some("/nowhere/libnvidia-ml.so.1".into()),
        ..InventorySources::default()
    };
    assert!(GpuEvents::listen(&nowhere).is_none());
}
