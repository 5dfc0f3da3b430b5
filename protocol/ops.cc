#include <array>
#include <type_traits>

#include "protocol/field_check.h"
#include "protocol/messages.h"
#include "protocol/request_fields.h"

namespace mk::protocol {
namespace {

constexpr std::array kOps = {
    OpInfo{Op::kHello, "hello", true, false, "agree on a protocol version"},
    OpInfo{Op::kPing, "ping", true, false, "is the daemon there"},
    OpInfo{Op::kStatus, "status", true, false, "what the daemon does and holds"},
    OpInfo{Op::kModels, "models", false, false, "the models that can be found by name"},
    OpInfo{Op::kLoad, "load", false, true, "load a model and keep it warm"},
    OpInfo{Op::kUnload, "unload", true, false, "give back a model's memory"},
    OpInfo{Op::kRun, "run", false, true, "read a prompt and generate"},
    OpInfo{Op::kCancel, "cancel", true, false, "end a request of this connection"},
    OpInfo{Op::kAck, "ack", true, false, "what has been shown; a sign of life"},
    OpInfo{Op::kStop, "stop", true, false, "end the daemon"},
    OpInfo{Op::kTokenize, "tokenize", false, false, "text to token ids"},
    OpInfo{Op::kDetokenize, "detokenize", false, false, "token ids to text"},
    OpInfo{Op::kVerify, "verify", false, true, "read every byte of a model file and check it"},
    OpInfo{Op::kBuild, "build", false, true, "make a model file of random weights"},
    OpInfo{Op::kBench, "bench", false, true, "measure the speed of a model"},
    OpInfo{Op::kMetrics, "metrics", true, false, "what the daemon has counted and measured"},
    OpInfo{Op::kJobs, "jobs", true, false, "the jobs that wait, run and have ended"},
    OpInfo{Op::kJobStart, "job_start", false, false, "start a job that lives on by itself"},
    OpInfo{Op::kJobAttach, "job_attach", false, true, "watch a job to its end"},
    OpInfo{Op::kJobShow, "job_show", true, false, "one job and its result"},
    OpInfo{Op::kJobCancel, "job_cancel", true, false, "end a job"},
    OpInfo{Op::kJobResume, "job_resume", true, false, "start a job again that ended unfinished"},
    OpInfo{Op::kJobRemove, "job_remove", true, false, "forget jobs that have ended"},
    OpInfo{Op::kSessions, "sessions", false, false, "the sessions that are kept"},
    OpInfo{Op::kSessionNew, "session_new", false, false, "make a session that nothing was said in"},
    OpInfo{Op::kSessionShow, "session_show", false, false, "a session and what was said in it"},
    OpInfo{Op::kSessionFork, "session_fork", false, false, "copy a session"},
    OpInfo{Op::kSessionUndo, "session_undo", false, false, "take back the last turns of a session"},
    OpInfo{Op::kSessionRename, "session_rename", false, false, "give a session another name"},
    OpInfo{Op::kSessionRemove, "session_remove", false, false, "forget sessions"},
    OpInfo{Op::kSessionSave, "session_save", false, false, "write a session's state into a pack"},
    OpInfo{Op::kSessionRestore, "session_restore", false, false, "make a session of a pack"},
    OpInfo{Op::kSessionDiff, "session_diff", false, false, "where two sessions part"},
    OpInfo{Op::kAbsorb, "absorb", false, true, "read a text into a memory pack"},
    OpInfo{Op::kPckInfo, "pck_info", true, false, "states of prompts that are kept"},
    OpInfo{Op::kPckClean, "pck_clean", false, false, "forget states of prompts"},
    OpInfo{Op::kScore, "score", false, true, "how likely given texts are"},
    OpInfo{Op::kExpertStats, "expert_stats", true, false, "how often experts were picked"},
    OpInfo{Op::kShadow, "shadow", false, true, "make a small copy of a model's experts"},
    OpInfo{Op::kEval, "eval", false, true, "measure a model on texts and tasks"},
    OpInfo{Op::kCompare, "compare", false, true, "measure two models on the same texts and tasks"},
};

constexpr bool InOrder() {
  for (size_t i = 0; i < kOps.size(); ++i) {
    if (static_cast<size_t>(kOps[i].op) != i) return false;
  }
  return kOps.size() == std::variant_size_v<Args>;
}
static_assert(InOrder(), "the table follows the enum, and the enum the variant");

template <typename T>
std::string TypeText(const Rule& rule) {
  if constexpr (std::is_same_v<T, bool>) return "bool";
  if constexpr (std::is_same_v<T, double>) return "number";
  if constexpr (std::is_same_v<T, std::string>) return rule.binary ? "bytes" : "text";
  if constexpr (HasSchema<T>) return "map";
  if constexpr (std::is_unsigned_v<T>) return "uint";
  return "int";
}
template <typename T>
struct TypeOfMember {
  static std::string Text(const Rule& rule) { return TypeText<T>(rule); }
};
template <typename T>
struct TypeOfMember<std::optional<T>> : TypeOfMember<T> {};
template <typename T>
struct TypeOfMember<std::vector<T>> {
  static std::string Text(const Rule& rule) { return "list of " + TypeText<T>(rule); }
};

template <typename Struct>
void AddFields(std::vector<FieldInfo>& fields);

template <typename S, typename M>
void AddField(std::vector<FieldInfo>& fields, const Field<S, M>& field) {
  fields.push_back({std::string(field.name), TypeOfMember<M>::Text(field.rule), field.required,
                    RangeText(field.rule), std::string(field.doc)});
}
template <typename S, typename M>
void AddField(std::vector<FieldInfo>& fields, const Inlined<S, M>&) {
  AddFields<M>(fields);
}
template <typename Struct>
void AddFields(std::vector<FieldInfo>& fields) {
  ForEachField<Struct>([&](const auto& field) { AddField(fields, field); });
}

template <size_t kIndex = 0>
void AddFieldsOf(Op op, std::vector<FieldInfo>& fields) {
  if constexpr (kIndex < std::variant_size_v<Args>) {
    if (static_cast<size_t>(op) != kIndex) return AddFieldsOf<kIndex + 1>(op, fields);
    AddFields<std::variant_alternative_t<kIndex, Args>>(fields);
  }
}

}  // namespace

const OpInfo& InfoOf(Op op) {
  return kOps[static_cast<size_t>(op)];
}

std::optional<Op> OpFromName(std::string_view name) {
  for (const OpInfo& info : kOps) {
    if (info.name == name) return info.op;
  }
  return std::nullopt;
}

std::vector<FieldInfo> FieldsOf(Op op) {
  std::vector<FieldInfo> fields;
  AddFieldsOf(op, fields);
  return fields;
}

}  // namespace mk::protocol
