#include "eval/task.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "eval/text_file.h"
#include "protocol/utf8.h"

namespace mk::eval {
namespace {

using nlohmann::json;
using protocol::ErrorCode;
using protocol::Fail;
using protocol::Result;

constexpr std::array kRules = {Rule::kChoice, Rule::kChoiceNorm, Rule::kGreedy, Rule::kGenerate};
constexpr std::array<std::string_view, 10> kFields = {"id",      "category", "prompt", "prompts",
                                                      "choices", "answer",   "rule",   "delimiter",
                                                      "until",   "max_new"};

// Why a line is no probe, and how to mend it.
struct Fault {
  std::string what;
  std::string hint;
};
using Checked = std::optional<Fault>;

std::string Quoted(std::string_view name) {
  std::string text(1, '"');
  text += name;
  return text += '"';
}

Checked TakeText(const json& object, const char* name, std::string& out) {
  if (!object.contains(name)) return {};
  if (!object[name].is_string()) return Fault{Quoted(name) + " is no string", {}};
  out = object[name].get<std::string>();
  return {};
}

Checked TakeTexts(const json& value, const std::string& name, size_t most,
                  std::vector<std::string>& out) {
  if (!value.is_array() || value.empty()) {
    return Fault{Quoted(name) + " is no list of strings", "for example [\"one\", \"two\"]"};
  }
  if (value.size() > most) {
    return Fault{Quoted(name) + " has more than " + std::to_string(most) + " entries", {}};
  }
  out.clear();
  for (const json& entry : value) {
    if (!entry.is_string()) return Fault{Quoted(name) + " has an entry that is no string", {}};
    out.push_back(entry.get<std::string>());
    if (out.back().empty()) return Fault{Quoted(name) + " has an entry that is empty", {}};
  }
  return {};
}

Checked TakePrompts(const json& object, Probe& probe) {
  if (object.contains("prompt") == object.contains("prompts")) {
    return Fault{"one of \"prompt\" and \"prompts\" is needed",
                 "\"prompts\" lists the same question put differently"};
  }
  if (object.contains("prompts")) {
    return TakeTexts(object["prompts"], "prompts", kMaxPrompts, probe.prompts);
  }
  std::string prompt;
  if (auto fault = TakeText(object, "prompt", prompt)) return fault;
  if (prompt.empty())
    return Fault{"the prompt is empty", "something has to come before the answer"};
  probe.prompts = {std::move(prompt)};
  return {};
}

Checked TakeRule(const json& object, Probe& probe) {
  probe.rule = object.contains("choices") ? Rule::kChoiceNorm : Rule::kGreedy;
  std::string name(NameOf(probe.rule));
  if (auto fault = TakeText(object, "rule", name)) return fault;
  const auto found =
      std::find_if(kRules.begin(), kRules.end(), [&](Rule rule) { return NameOf(rule) == name; });
  if (found == kRules.end()) {
    return Fault{"unknown rule " + Quoted(name),
                 "rules are choice, choice_norm, greedy and generate"};
  }
  probe.rule = *found;
  if (HasChoices(probe.rule) == object.contains("choices")) return {};
  return HasChoices(probe.rule)
             ? Fault{"the rule " + name + " needs \"choices\"", {}}
             : Fault{"the rule " + name + " has no \"choices\"", "leave them out, or the rule"};
}

// A number of a choice, or its text.
Checked TakeChoices(const json& object, Probe& probe) {
  if (auto fault = TakeTexts(object["choices"], "choices", kMaxChoices, probe.choices))
    return fault;
  if (probe.choices.size() < 2) return Fault{"there is only one choice", "give two or more"};
  const json& answer = object["answer"];
  if (answer.is_number_unsigned() && answer.get<uint64_t>() < probe.choices.size()) {
    probe.answer = answer.get<size_t>();
    return {};
  }
  if (answer.is_string()) {
    const auto found =
        std::find(probe.choices.begin(), probe.choices.end(), answer.get<std::string>());
    if (found != probe.choices.end()) {
      probe.answer = static_cast<size_t>(found - probe.choices.begin());
      return {};
    }
  }
  return Fault{
      "\"answer\" is none of the choices",
      "give its number, from 0 to " + std::to_string(probe.choices.size() - 1) + ", or its text"};
}

Checked TakeAnswers(const json& object, Probe& probe) {
  const json& answer = object["answer"];
  const json list = answer.is_string() ? json::array({answer}) : answer;
  if (auto fault = TakeTexts(list, "answer", kMaxChoices, probe.answers)) return fault;
  if (probe.rule == Rule::kGreedy && probe.answers.size() > 1) {
    return Fault{"the rule greedy has one answer", "the rule generate takes several"};
  }
  return {};
}

Checked TakeGeneration(const json& object, Probe& probe) {
  const bool generates = probe.rule == Rule::kGenerate;
  if (!generates && (object.contains("until") || object.contains("max_new"))) {
    return Fault{"\"until\" and \"max_new\" go with the rule generate", "leave them out"};
  }
  if (object.contains("until")) {
    if (auto fault = TakeTexts(object["until"], "until", 16, probe.until)) return fault;
  }
  if (!object.contains("max_new")) return {};
  const json& most = object["max_new"];
  if (!most.is_number_unsigned() || most == 0 || most.get<uint64_t>() > kMaxNew) {
    return Fault{"\"max_new\" is no number from 1 to " + std::to_string(kMaxNew), {}};
  }
  probe.max_new = most.get<uint32_t>();
  return {};
}

Checked ReadProbe(const json& object, Probe& probe) {
  if (!object.is_object()) {
    return Fault{"not a JSON object", "a line is {\"prompt\": \"...\", ...}"};
  }
  for (const auto& entry : object.items()) {
    if (std::find(kFields.begin(), kFields.end(), entry.key()) == kFields.end()) {
      return Fault{"unknown field " + Quoted(entry.key()),
                   "fields are id, category, prompt, prompts, choices, answer, rule, delimiter, "
                   "until and max_new"};
    }
  }
  if (!object.contains("answer")) return Fault{"there is no \"answer\"", "give the right one"};
  for (const auto& [name, text] : {std::pair{"id", &probe.id},
                                   {"category", &probe.category},
                                   {"delimiter", &probe.delimiter}}) {
    if (auto fault = TakeText(object, name, *text)) return fault;
  }
  if (auto fault = TakePrompts(object, probe)) return fault;
  if (auto fault = TakeRule(object, probe)) return fault;
  if (auto fault = HasChoices(probe.rule) ? TakeChoices(object, probe) : TakeAnswers(object, probe))
    return fault;
  return TakeGeneration(object, probe);
}

}  // namespace

std::string_view NameOf(Rule rule) {
  switch (rule) {
    case Rule::kChoice:
      return "choice";
    case Rule::kChoiceNorm:
      return "choice_norm";
    case Rule::kGreedy:
      return "greedy";
    case Rule::kGenerate:
      break;
  }
  return "generate";
}

Result<Task> ParseTask(const std::string& path, std::string_view bytes, uint32_t limit) {
  Task task;
  task.name = NameOfFile(path);
  auto lines = LinesOf(path, bytes);
  if (!lines) return Fail(std::move(lines.error()));
  std::set<std::string> ids;
  for (const Line& line : *lines) {
    if (limit > 0 && task.probes.size() == limit) break;
    const std::string where = path + ":" + std::to_string(line.number) + ": ";
    if (task.probes.size() == kMaxProbes) {
      return Fail(ErrorCode::kBadRequest,
                  where + "more than " + std::to_string(kMaxProbes) + " probes",
                  "cut the file into several");
    }
    if (protocol::FindInvalidUtf8(line.text) != std::string_view::npos) {
      return Fail(ErrorCode::kBadRequest, where + "not UTF-8",
                  "convert it, with iconv for example");
    }
    Probe probe;
    if (auto fault = ReadProbe(json::parse(line.text, nullptr, false), probe)) {
      return Fail(ErrorCode::kBadRequest, where + fault->what, fault->hint);
    }
    if (probe.id.empty()) probe.id = "line " + std::to_string(line.number);
    if (!ids.insert(probe.id).second) {
      return Fail(ErrorCode::kBadRequest, where + "a second probe of the id " + Quoted(probe.id),
                  "give every probe an id of its own, or none");
    }
    task.probes.push_back(std::move(probe));
  }
  if (task.probes.empty()) {
    return Fail(ErrorCode::kBadRequest, path + " has no probes",
                "a line is {\"prompt\": \"...\", \"choices\": [...], \"answer\": 0}");
  }
  return task;
}

}  // namespace mk::eval
