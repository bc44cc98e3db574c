//! Types that hold the part of a kind that a loop reads. Decoding the rest of every object, only to drop it, would be
//! most of such a loop's cost.

/// Makes a type with a field `metadata` a part of a kind: the client lists and watches it as that kind.
macro_rules! part_of {
    ($whole:ty, $part:ty) => {
        impl k8s_openapi::Resource for $part {
            const API_VERSION: &'static str = <$whole as k8s_openapi::Resource>::API_VERSION;
            const GROUP: &'static str = <$whole as k8s_openapi::Resource>::GROUP;
            const KIND: &'static str = <$whole as k8s_openapi::Resource>::KIND;
            const VERSION: &'static str = <$whole as k8s_openapi::Resource>::VERSION;
            const URL_PATH_SEGMENT: &'static str =
                <$whole as k8s_openapi::Resource>::URL_PATH_SEGMENT;
            type Scope = <$whole as k8s_openapi::Resource>::Scope;
        }

        impl k8s_openapi::Metadata for $part {
            type Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

            fn metadata(&self) -> &Self::Ty {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut Self::Ty {
                &mut self.metadata
            }
        }
    };
}

pub(crate) use part_of;
