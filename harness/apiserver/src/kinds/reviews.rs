//! Reviews: questions that are answered at create and not stored. The answers are in [`crate::auth`].

use podlab_api::{authentication, k8s_openapi::api::authorization::v1 as authorization};

use super::{BASE, Row};

pub(super) fn rows() -> Vec<Row> {
    vec![
        review::<authentication::TokenReview>("tokenreview"),
        review::<authentication::SelfSubjectReview>("selfsubjectreview"),
        review::<authorization::SubjectAccessReview>("subjectaccessreview"),
        review::<authorization::SelfSubjectAccessReview>("selfsubjectaccessreview"),
        review::<authorization::SelfSubjectRulesReview>("selfsubjectrulesreview"),
        review::<authorization::LocalSubjectAccessReview>("localsubjectaccessreview"),
    ]
}

fn review<K: podlab_api::KubeType>(singular: &'static str) -> Row {
    Row::of::<K>(singular, &[], BASE)
}
