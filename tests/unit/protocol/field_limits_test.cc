// Every field of every request that has a range, a length or a form: the last value within it is
// taken, the first beyond it is refused under the field's own name and with a way to mend it.

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/unit/protocol/wire.h"

namespace mk::protocol {
namespace {

using testing::json;
using testing::Pack;
using testing::RequestJson;

struct FieldLimit {
  const char* op;
  const char* field;
  json within;
  json beyond;
};

constexpr int64_t kMillion = 1 << 20;
constexpr int64_t kWeekMs = int64_t{7} * 24 * 3600 * 1000;

std::string Path(size_t bytes) {
  std::string path(bytes, 'p');
  path[0] = '/';
  return path;
}

json Times(size_t count, const json& item) {
  return json(std::vector<json>(count, item));
}

// The args that an op needs beside the field that is tried.
json ArgsFor(const std::string& op) {
  if (op == "hello") return {{"protocol_min", 1}, {"protocol_max", 1}, {"build_id", "b"}};
  if (op == "run") return {{"prompt", "Hi"}};
  if (op == "run ids") return json::object();
  if (op == "score") return {{"texts", json::array({{{"text", "Hi"}}})}};
  if (op == "tokenize") return {{"text", "Hi"}, {"chat", true}};
  if (op == "detokenize") return {{"ids", json::array({1})}};
  if (op == "build") return {{"out", "/o.bin"}};
  if (op == "eval") return {{"texts", json::array({"fables"})}};
  if (op == "compare") {
    return {{"a", json::object()}, {"b", json::object()}, {"texts", json::array({"fables"})}};
  }
  if (op == "absorb") return {{"text", "/t.txt"}, {"save", "story"}};
  if (op == "cancel") return {{"request", 1}};
  if (op == "session_fork" || op == "session_rename") return {{"from", "a"}, {"name", "b"}};
  if (op == "session_diff") return {{"a", "a"}, {"b", "b"}};
  if (op == "session_remove") return {{"names", json::array({"a"})}};
  if (op == "session_restore") return {{"name", "a"}, {"pack", "p"}};
  if (op.starts_with("session_")) return {{"name", "a"}};
  if (op == "ack") return {{"request", 1}, {"seq", 1}};
  return json::object();
}

std::optional<Error> RefusalWith(const std::string& op, const std::string& field,
                                 const json& value) {
  json args = ArgsFor(op);
  args[field] = value;
  const auto request = DecodeRequest(Pack(RequestJson(op.substr(0, op.find(' ')), args)));
  if (request) return std::nullopt;
  return request.error().error;
}

void AddModelLimits(std::vector<FieldLimit>& limits) {
  for (const char* op : {"load", "unload", "run", "score", "tokenize", "detokenize", "verify",
                         "bench", "absorb", "shadow", "eval", "session_new", "session_restore"}) {
    limits.push_back({op, "model", Path(4096), Path(4097)});
    limits.push_back({op, "model", "name", "folder/name"});
    limits.push_back({op, "model", "name", std::string("a\0b", 3)});
  }
  for (const char* op :
       {"load", "run", "score", "tokenize", "detokenize", "bench", "absorb", "eval"}) {
    for (const char* field : {"vocab", "rank_file"}) {
      limits.push_back({op, field, Path(4096), Path(4097)});
      limits.push_back({op, field, "/v", "v"});
    }
  }
}

void AddStreamLimits(std::vector<FieldLimit>& limits) {
  for (const char* op : {"load", "run", "score", "eval", "compare"}) {
    limits.push_back({op, "stream", "", "yes"});
    limits.push_back({op, "stream", "auto", "ON"});
  }
  limits.push_back({"run", "spec_shadow", 64, 65});
}

void AddEvalLimits(std::vector<FieldLimit>& limits) {
  for (const char* op : {"eval", "compare"}) {
    for (const char* field : {"tasks", "texts"}) {
      const auto with = [](const json& file, size_t count) { return Times(count, file); };
      limits.push_back({op, field, with("a", 256), with("a", 257)});
      limits.push_back({op, field, with(Path(4096), 1), with(Path(4097), 1)});
      limits.push_back({op, field, with("a", 1), with("a/b", 1)});
      limits.push_back({op, field, with("a", 1), with("", 1)});
    }
    limits.push_back({op, "precision", "q8", "q4"});
  }
  limits.push_back({"compare", "precision_b", "bf16", "q4"});
  limits.push_back({"compare", "resamples", 100, 99});
  limits.push_back({"compare", "resamples", 1'000'000, 1'000'001});
  limits.push_back({"compare", "interval", "percentile", "basic"});
}

json Biases(size_t count, double bias) {
  return Times(count, json{{"id", 1}, {"bias", bias}});
}

void AddProcessingLimits(std::vector<FieldLimit>& limits) {
  const std::vector<FieldLimit> processing = {
      {"run", "logit_bias", Biases(1024, -100), Biases(1025, 0)},
      {"run", "logit_bias", Biases(1, 100), Biases(1, 100.5)},
      {"run", "logit_bias", json::array({{{"id", 0}, {"bias", 1}}}),
       json::array({{{"id", -1}, {"bias", 1}}})},
      {"run", "ban", Times(1024, 1), Times(1025, 1)},
      {"run", "ban", json::array({2147483647}), json::array({2147483648})},
      {"run", "ban_text", Times(1024, "x"), Times(1025, "x")},
      {"run", "ban_text", json::array({"x"}), json::array({""})},
      {"run", "dry_multiplier", 100, 100.5},
      {"run", "dry_base", 1, 0.5},
      {"run", "dry_allowed_length", 1, 0},
      {"run", "dry_range", 65536, 65537},
      {"run", "dry_range", 1, 0},
      {"run", "dry_breakers", Times(32, "x"), Times(33, "x")},
      {"run", "dry_compat", 0, -0.5},
      {"run", "repetition_penalty", 0.1, 0.09},
      {"run", "repetition_penalty", 10, 10.5},
      {"run", "frequency_penalty", -2, -2.5},
      {"run", "presence_penalty", 2, 2.5},
      {"run", "penalty_window", kMillion, kMillion + 1},
      {"run", "typical_p", 1, 0},
      {"run", "logprobs", 20, 21},
      {"run", "logprobs", 0, -1},
  };
  limits.insert(limits.end(), processing.begin(), processing.end());
}

void AddSessionLimits(std::vector<FieldLimit>& limits) {
  const std::pair<const char*, const char*> names[] = {
      {"run", "session"},          {"session_new", "name"},    {"session_show", "name"},
      {"session_fork", "from"},    {"session_fork", "name"},   {"session_undo", "name"},
      {"session_rename", "from"},  {"session_rename", "name"}, {"session_save", "name"},
      {"session_restore", "name"}, {"session_diff", "a"},      {"session_diff", "b"}};
  for (const auto& [op, field] : names) {
    limits.push_back({op, field, std::string(64, 'x'), std::string(65, 'x')});
    limits.push_back({op, field, "A-1._", "-a"});
    limits.push_back({op, field, "a", "a/b"});
    if (std::string(field) != "session") limits.push_back({op, field, "a", ""});
  }
  limits.push_back({"session_remove", "names", Times(1024, "a"), Times(1025, "a")});
  limits.push_back({"session_remove", "names", json::array({"a"}), json::array({".."})});
  limits.push_back({"session_undo", "turns", 0, -1});
  limits.push_back({"session_fork", "turns", 0, -1});
  limits.push_back({"session_new", "precision", "bf16", "f64"});
  limits.push_back({"session_save", "pack", Path(4096), Path(4097)});
  limits.push_back({"session_save", "pack", "kept", "./kept"});
  limits.push_back({"session_restore", "pack", "kept", ""});
}

std::vector<FieldLimit> AllLimits() {
  const int64_t last_id = 2147483647;
  std::vector<FieldLimit> limits = {
      {"hello", "build_id", std::string(128, 'b'), std::string(129, 'b')},
      {"hello", "build_id", "a b", "a\x1f"},
      {"hello", "client", std::string(128, 'c'), std::string(129, 'c')},
      {"hello", "client", "mk\xC2\xA0", "mk\x7f"},
      {"hello", "protocol_min", 0, -1},
      {"hello", "protocol_max", 4294967295, 4294967296},
      {"load", "keep_alive_ms", -1, -2},
      {"load", "keep_alive_ms", 1000000000000000, 1000000000000001},
      {"run", "prompt", "x", ""},
      {"run ids", "ids", json::array({last_id}), json::array({last_id + 1})},
      {"run ids", "ids", json::array({0}), json::array({-1})},
      {"run", "dialect", "", "k4"},
      {"run", "dialect", "nano-sft", "nano"},
      {"run", "max_new", 0, -1},
      {"run", "max_new", kMillion, kMillion + 1},
      {"run", "temperature", 0, -0.001},
      {"run", "temperature", 100, 100.001},
      {"run", "top_p", 1e-9, 0},
      {"run", "top_p", 1, 1.001},
      {"run", "top_k", 0, -1},
      {"run", "top_k", kMillion, kMillion + 1},
      {"run", "min_p", 0, -0.001},
      {"run", "min_p", 1, 1.001},
      {"run", "spec", 0, -1},
      {"run", "spec", 64, 65},
      {"run", "spec_rosa", 0, -1},
      {"run", "spec_rosa", 64, 65},
      {"run", "precision", "exact", ""},
      {"run", "lens", "answer", "first"},
      {"run", "lens_top", 1, 0},
      {"run", "lens_top", 100, 101},
      {"run", "lens_layers", json::array({4294967295}), json::array({4294967296})},
      {"load", "precision", "q8", "Q8"},
      {"run", "priority", "background", "low"},
      {"run", "stop", Times(16, "x"), Times(17, "x")},
      {"run", "stop", json::array({std::string(256, 'x')}), json::array({std::string(257, 'x')})},
      {"run", "stop", json::array(), json::array({""})},
      {"run", "timeout_ms", 0, -1},
      {"run", "timeout_ms", kWeekMs, kWeekMs + 1},
      {"run", "window", 1, 0},
      {"run", "window", kMaxWindow, kMaxWindow + 1},
      {"score", "texts", Times(4096, {{"text", "x"}}), Times(4097, {{"text", "x"}})},
      {"score", "texts", json::array({{{"text", "x"}}}), json::array({{{"text", ""}}})},
      {"score", "precision", "exact", "f64"},
      {"score", "priority", "background", "low"},
      {"score", "timeout_ms", kWeekMs, kWeekMs + 1},
      {"score", "window", 1, 0},
      {"stop", "grace_ms", 0, -1},
      {"stop", "grace_ms", kWeekMs, kWeekMs + 1},
      {"tokenize", "dialect", "k3", "K3"},
      {"detokenize", "ids", json::array({last_id}), json::array({last_id + 1})},
      {"detokenize", "ids", json::array({0}), json::array({-1})},
      {"build", "arch", std::string(64, 'a'), std::string(65, 'a')},
      {"build", "arch", "a", ""},
      {"build", "arch", "a", "a\n"},
      {"build", "preset", std::string(64, 'p'), std::string(65, 'p')},
      {"build", "preset", "p", ""},
      {"build", "preset", "p", "p\t"},
      {"build", "out", Path(4096), Path(4097)},
      {"build", "out", "/o", "o"},
      {"build", "out", "/o", ""},
      {"build", "set", Times(256, "k=v"), Times(257, "k=v")},
      {"build", "set", json::array({std::string(1024, 's')}),
       json::array({std::string(1025, 's')})},
      {"build", "set", json::array({"k"}), json::array({""})},
      {"build", "expert_align", "4096", "128"},
      {"build", "threads", 0, -1},
      {"build", "threads", 1024, 1025},
      {"bench", "precision", "auto", "q4"},
      {"bench", "threads", 0, -1},
      {"bench", "threads", 1024, 1025},
      {"metrics", "form", "families", "json"},
      {"run", "memory", Path(4096), Path(4097)},
      {"run", "memory", "story", "folder/story"},
      {"run", "save", "story", "folder/story"},
      {"run", "save_format", 1, 0},
      {"run", "save_format", 2, 3},
      {"absorb", "text", Path(4096), Path(4097)},
      {"absorb", "text", "/t", "t"},
      {"absorb", "text", "/t", ""},
      {"absorb", "save", "story", "folder/story"},
      {"absorb", "save", "story", ""},
      {"absorb", "save_format", 1, 0},
      {"absorb", "save_format", 2, 3},
      {"absorb", "memory", "", "a/b"},
      {"absorb", "precision", "auto", "q4"},
      {"shadow", "out", Path(4096), Path(4097)},
      {"shadow", "out", "", "s"},
      {"shadow", "version", 1, 0},
      {"shadow", "version", 2, 3},
      {"shadow", "stages", 1, 0},
      {"shadow", "stages", 2, 3},
      {"shadow", "threads", 1024, 1025},
  };
  AddEvalLimits(limits);
  AddStreamLimits(limits);
  AddModelLimits(limits);
  AddProcessingLimits(limits);
  AddSessionLimits(limits);
  return limits;
}

TEST(FieldLimits, WhatIsWithinIsTakenAndWhatIsBeyondIsRefused) {
  for (const FieldLimit& limit : AllLimits()) {
    const std::string what = std::string(limit.op) + "." + limit.field;
    const std::string shown = limit.beyond.dump(-1, ' ', true).substr(0, 40);
    const auto taken = RefusalWith(limit.op, limit.field, limit.within);
    EXPECT_FALSE(taken) << what << ": " << (taken ? taken->message : "");
    const auto refused = RefusalWith(limit.op, limit.field, limit.beyond);
    ASSERT_TRUE(refused) << what << " " << shown;
    EXPECT_NE(refused->message.find(std::string("`") + limit.field), std::string::npos)
        << what << " " << shown << ": " << refused->message;
    EXPECT_FALSE(refused->hint.empty()) << what << " " << shown;
    ASSERT_TRUE(refused->details.contains("field")) << what << " " << shown;
    EXPECT_TRUE(std::get<std::string>(refused->details.at("field")).starts_with(limit.field));
  }
}

TEST(FieldLimits, AMillionIdsAreTakenAndOneMoreIsNot) {
  const auto refusal = [](Args args) -> std::string {
    const auto request = DecodeRequest(EncodeRequest({kProtocolMax, 7, std::move(args)}));
    return request ? "" : request.error().error.message + "\n" + request.error().error.hint;
  };
  for (const size_t count : {size_t{kMillion}, size_t{kMillion} + 1}) {
    RunArgs run;
    run.ids = std::vector<int32_t>(count, 1);
    DetokenizeArgs detokenize;
    detokenize.ids = *run.ids;
    for (const std::string& error : {refusal(run), refusal(detokenize)}) {
      if (count == kMillion) {
        EXPECT_EQ(error, "");
      } else {
        EXPECT_NE(error.find("`ids`"), std::string::npos) << error;
        EXPECT_NE(error.find("1048576 are allowed"), std::string::npos) << error;
        EXPECT_NE(error.find("send less"), std::string::npos) << error;
      }
    }
  }
}

TEST(FieldLimits, EveryRangeThatIsListedIsTried) {
  std::set<std::string> tried;
  for (const FieldLimit& limit : AllLimits()) {
    const std::string op = limit.op;
    tried.insert(op.substr(0, op.find(' ')) + "." + limit.field);
  }
  for (size_t i = 0; i < std::variant_size_v<Args>; ++i) {
    const Op op = static_cast<Op>(i);
    for (const FieldInfo& field : FieldsOf(op)) {
      if (field.range.empty()) continue;
      const std::string name = std::string(InfoOf(op).name) + "." + field.name;
      EXPECT_TRUE(tried.contains(name)) << name << " has a range that no test tries";
    }
  }
}

TEST(FieldLimits, HintsTellTypeRangeAndMeaning) {
  const auto hot = RefusalWith("run", "temperature", 101);
  ASSERT_TRUE(hot);
  EXPECT_EQ(hot->message, "`temperature` must be 0 to 100, not 101");
  EXPECT_EQ(hot->hint, "`temperature` (number, 0 to 100): 0: always the likeliest token");
  const auto unknown = RefusalWith("detokenize", "max_tokens", 1);
  ASSERT_TRUE(unknown);
  EXPECT_EQ(unknown->message, "`max_tokens` is no field that is known here");
  EXPECT_EQ(unknown->hint, "fields of `detokenize`: model, vocab, rank_file, ids");
  const auto none = RefusalWith("ping", "x", 1);
  ASSERT_TRUE(none);
  EXPECT_EQ(none->hint, "`ping` has no fields");
}

}  // namespace
}  // namespace mk::protocol
