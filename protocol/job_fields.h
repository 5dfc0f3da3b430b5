// The fields of jobs and of what they give. Included by reply_fields.h.

#pragma once

#include "protocol/bench_fields.h"
#include "protocol/eval_fields.h"
#include "protocol/field.h"
#include "protocol/job_messages.h"
#include "protocol/pack_fields.h"
#include "protocol/shadow_fields.h"

namespace mk::protocol {

template <>
struct Schema<VerifyProblem> {
  static constexpr auto fields = std::make_tuple(Required("tensor", &VerifyProblem::tensor),
                                                 Required("message", &VerifyProblem::message),
                                                 Required("count", &VerifyProblem::count));
};

template <>
struct Schema<VerifyDone> {
  static constexpr auto fields = std::make_tuple(
      Required("path", &VerifyDone::path), Required("ok", &VerifyDone::ok),
      Required("file_bytes", &VerifyDone::file_bytes), Required("tensors", &VerifyDone::tensors),
      Required("values_checked", &VerifyDone::values_checked),
      Required("xxh3_128", &VerifyDone::xxh3_128),
      Required("content_sha256", &VerifyDone::content_sha256),
      Required("digest_recorded", &VerifyDone::digest_recorded),
      Required("problems_total", &VerifyDone::problems_total),
      Required("problems", &VerifyDone::problems), Required("warnings", &VerifyDone::warnings));
};

template <>
struct Schema<BuildDone> {
  static constexpr auto fields = std::make_tuple(
      Required("path", &BuildDone::path), Required("written", &BuildDone::written),
      Required("tensors", &BuildDone::tensors), Required("parameters", &BuildDone::parameters),
      Required("file_bytes", &BuildDone::file_bytes),
      Required("expert_bytes", &BuildDone::expert_bytes),
      Required("spine_bytes", &BuildDone::spine_bytes), Required("seconds", &BuildDone::seconds));
};

template <>
struct Schema<JobResult> {
  static constexpr auto fields =
      std::make_tuple(Optional("verify", &JobResult::verify), Optional("build", &JobResult::build),
                      Optional("bench", &JobResult::bench), Optional("absorb", &JobResult::absorb),
                      Optional("shadow", &JobResult::shadow), Optional("eval", &JobResult::eval),
                      Optional("compare", &JobResult::compare));
};

template <>
struct Schema<JobError> {
  static constexpr auto fields =
      std::make_tuple(Required("code", &JobError::code), Required("message", &JobError::message),
                      Required("hint", &JobError::hint));
};

template <>
struct Schema<JobStatus> {
  static constexpr auto fields = std::make_tuple(
      Required("id", &JobStatus::id), Required("kind", &JobStatus::kind),
      Required("what", &JobStatus::what), Required("state", &JobStatus::state),
      Required("phase", &JobStatus::phase), Required("done", &JobStatus::done),
      Required("total", &JobStatus::total), Required("unit", &JobStatus::unit),
      Required("kept", &JobStatus::kept), Optional("eta_ms", &JobStatus::eta_ms),
      Required("asked_by", &JobStatus::asked_by), Required("detached", &JobStatus::detached),
      Required("attached", &JobStatus::attached), Required("queue", &JobStatus::queue),
      Required("runs", &JobStatus::runs), Required("resumable", &JobStatus::resumable),
      Required("saved", &JobStatus::saved), Required("created_ms", &JobStatus::created_ms),
      Required("started_ms", &JobStatus::started_ms), Required("ended_ms", &JobStatus::ended_ms),
      Required("age_ms", &JobStatus::age_ms), Optional("error", &JobStatus::error));
};

template <>
struct Schema<JobReport> {
  static constexpr auto fields =
      std::make_tuple(Required("job", &JobReport::job), Required("result", &JobReport::result));
};

template <>
struct Schema<JobsDone> {
  static constexpr auto fields =
      std::make_tuple(Required("jobs", &JobsDone::jobs), Required("trouble", &JobsDone::trouble));
};

template <>
struct Schema<JobStartDone> {
  static constexpr auto fields = std::make_tuple(Inline(&JobStartDone::report));
};

template <>
struct Schema<JobAttachDone> {
  static constexpr auto fields = std::make_tuple(Inline(&JobAttachDone::report));
};

template <>
struct Schema<JobShowDone> {
  static constexpr auto fields = std::make_tuple(Inline(&JobShowDone::report));
};

template <>
struct Schema<JobCancelDone> {
  static constexpr auto fields = std::make_tuple(Inline(&JobCancelDone::report));
};

template <>
struct Schema<JobResumeDone> {
  static constexpr auto fields = std::make_tuple(Inline(&JobResumeDone::report));
};

template <>
struct Schema<JobRemoveDone> {
  static constexpr auto fields = std::make_tuple(Required("removed", &JobRemoveDone::removed));
};

}  // namespace mk::protocol
