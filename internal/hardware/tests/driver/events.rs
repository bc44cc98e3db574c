//! XIDs are told to who listens, as they happen.

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;

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
