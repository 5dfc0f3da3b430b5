#include "protocol/job_record.h"

#include "protocol/job_fields.h"
#include "protocol/message_object.h"
#include "protocol/request_fields.h"
#include "protocol/value_reader.h"
#include "protocol/value_writer.h"

namespace mk::protocol {
namespace {

constexpr size_t kMaxTextBytes = 8192;
constexpr Rule kLineRule = Rule{}.Bytes(kMaxTextBytes);

// The record with its state as text.
struct StoredRecord {
  JobRecord record;
  std::string state;
};

struct RecordHead {
  uint32_t version = 0;
};

Status Bad(std::string message) {
  return Fail(ErrorCode::kBadRequest, std::move(message));
}

Status CheckError(const JobRecord& record) {
  const bool wants = record.state == JobState::kFailed || record.state == JobState::kCancelled ||
                     record.state == JobState::kInterrupted;
  if (wants != record.error.has_value()) {
    return Bad(wants ? "an unfinished end without an error" : "an error of a job that has none");
  }
  if (record.error && !ErrorCodeFromName(record.error->code)) {
    return Bad("an error of an unknown code");
  }
  return {};
}

Status CheckResult(const JobRecord& record) {
  const JobResult& result = record.result;
  const JobSpec& spec = record.spec;
  const bool done = record.state == JobState::kDone;
  const bool fits = result.verify.has_value() == (done && spec.verify) &&
                    result.build.has_value() == (done && spec.build) &&
                    result.bench.has_value() == (done && spec.bench) &&
                    result.absorb.has_value() == (done && spec.absorb) &&
                    result.shadow.has_value() == (done && spec.shadow) &&
                    result.eval.has_value() == (done && spec.eval) &&
                    result.compare.has_value() == (done && spec.compare);
  return fits ? Status() : Bad("a result that does not fit the job");
}

}  // namespace

template <>
struct Schema<RecordHead> {
  static constexpr auto fields = std::make_tuple(Required("version", &RecordHead::version));
};

template <>
struct Schema<JobRecord> {
  static constexpr auto fields = std::make_tuple(
      Required("version", &JobRecord::version), Required("id", &JobRecord::id),
      Required("spec", &JobRecord::spec), Required("what", &JobRecord::what, kLineRule),
      Required("asked_by", &JobRecord::asked_by, kLineRule),
      Required("detached", &JobRecord::detached), Required("runs", &JobRecord::runs),
      Required("created_ms", &JobRecord::created_ms),
      Required("started_ms", &JobRecord::started_ms), Required("ended_ms", &JobRecord::ended_ms),
      Required("phase", &JobRecord::phase, kLineRule), Required("done", &JobRecord::done),
      Required("total", &JobRecord::total), Required("unit", &JobRecord::unit, kLineRule),
      Required("kept", &JobRecord::kept),
      Required("checkpoint", &JobRecord::checkpoint, Rule{}.Binary()),
      Required("result", &JobRecord::result), Optional("error", &JobRecord::error));
};

template <>
struct Schema<StoredRecord> {
  static constexpr auto fields =
      std::make_tuple(Inline(&StoredRecord::record), Required("state", &StoredRecord::state));
};

int KindsIn(const JobSpec& spec) {
  return int{spec.verify.has_value()} + int{spec.build.has_value()} + int{spec.bench.has_value()} +
         int{spec.absorb.has_value()} + int{spec.shadow.has_value()} + int{spec.eval.has_value()} +
         int{spec.compare.has_value()};
}

std::string_view KindOf(const JobSpec& spec) {
  if (spec.verify) return "verify";
  if (spec.build) return "build";
  if (spec.bench) return "bench";
  if (spec.absorb) return "absorb";
  if (spec.shadow) return "shadow";
  if (spec.eval) return "eval";
  if (spec.compare) return "compare";
  return {};
}

std::vector<std::string> PathsIn(const JobSpec& spec) {
  if (spec.verify) return {spec.verify->model};
  if (spec.build) return {spec.build->out};
  if (spec.bench) return {spec.bench->model.model};
  if (spec.absorb) return {spec.absorb->text};
  if (spec.shadow) return {spec.shadow->out.empty() ? spec.shadow->model : spec.shadow->out};
  std::vector<std::string> paths;
  const auto add = [&](const EvalItems& items) {
    paths.insert(paths.end(), items.tasks.begin(), items.tasks.end());
    paths.insert(paths.end(), items.texts.begin(), items.texts.end());
  };
  if (spec.eval) {
    paths = {spec.eval->model.model};
    add(spec.eval->items);
  } else if (spec.compare) {
    paths = {spec.compare->a.model, spec.compare->b.model};
    add(spec.compare->items);
  }
  return paths;
}

std::string EncodeJobRecord(const JobRecord& record) {
  ValueWriter writer(ValueWriter::BadText::kReplace);
  writer.Write(StoredRecord{record, std::string(NameOf(record.state))});
  return writer.Take();
}

Result<JobRecord> DecodeJobRecord(std::string_view bytes) {
  Result<msgpack::object_handle> object = UnpackMessage(bytes);
  if (!object) return Fail(std::move(object.error()));
  const ValueReader reader(UnknownFields::kIgnore);
  RecordHead head;
  if (Status read = reader.Read(object->get(), head, {}); !read) return Fail(read.error());
  if (head.version != kJobRecordVersion) {
    return Fail(ErrorCode::kUnsupportedVersion,
                "a record of version " + std::to_string(head.version) + ", this build reads " +
                    std::to_string(kJobRecordVersion));
  }
  StoredRecord stored;
  if (Status read = reader.Read(object->get(), stored, {}); !read) return Fail(read.error());
  JobRecord& record = stored.record;
  const auto state = JobStateFromName(stored.state);
  if (!state) return Fail(ErrorCode::kBadRequest, "`state` is none that is known");
  record.state = *state;
  if (!IsJobId(record.id)) return Fail(ErrorCode::kBadRequest, "`id` is no job's");
  if (record.checkpoint.size() > kMaxCheckpointBytes) {
    return Fail(ErrorCode::kBadRequest, "`checkpoint` is too large");
  }
  if (KindsIn(record.spec) != 1) {
    return Fail(ErrorCode::kBadRequest, "`spec` is not one kind of work");
  }
  if (Status checked = CheckError(record); !checked) return Fail(checked.error());
  if (Status checked = CheckResult(record); !checked) return Fail(checked.error());
  return std::move(record);
}

}  // namespace mk::protocol
