#include "client/session_text.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>

#include "client/chat.h"
#include "client/printable.h"
#include "client/progress.h"
#include "client/text_table.h"

namespace mk::client {
namespace {

using Align = TextTable::Align;

// Columns of a turn's line that show what was said.
constexpr size_t kSaidWidth = 60;

std::string Count(uint64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string AgoText(uint64_t ms) {
  const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  const auto then = static_cast<int64_t>(ms);
  return DurationText(static_cast<double>(std::max<int64_t>(0, now - then)) / 1e3) + " ago";
}

std::string KindText(const protocol::SessionInfo& session) {
  return session.kind.empty() ? "new" : session.kind;
}

std::string UseText(const protocol::SessionInfo& session) {
  if (!session.in_use) return "-";
  return session.waiting == 0 ? "in use"
                              : "in use, " + std::to_string(session.waiting) + " waiting";
}

// One line of what was said, without its line breaks.
std::string Said(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::string fitted = Fitted(Printable(text), kSaidWidth);
  while (fitted.ends_with(' ')) fitted.pop_back();
  return fitted;
}

std::string Percent(double share) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.3g %%", 100 * share);
  return text.data();
}

}  // namespace

std::string SessionsText(const protocol::SessionsDone& done) {
  std::string text;
  for (const std::string& trouble : done.troubles) text += Printable(trouble) + "\n";
  if (done.sessions.empty()) return text + "no sessions\n";
  TextTable table{Align::kLeft,  Align::kLeft, Align::kRight, Align::kRight, Align::kRight,
                  Align::kRight, Align::kLeft, Align::kLeft,  Align::kLeft};
  table.Add({"NAME", "KIND", "TURNS", "TOKENS", "STATES", "DISK", "CHANGED", "USE", "MODEL"});
  for (const auto& session : done.sessions) {
    table.Add({session.name, KindText(session), std::to_string(session.turns),
               std::to_string(session.tokens), std::to_string(session.states),
               BytesText(session.disk_bytes), AgoText(session.used_ms), UseText(session),
               ModelName(session.model)});
  }
  return text + table.Text();
}

std::string SessionNamesText(const protocol::SessionsDone& done) {
  std::string text;
  for (const auto& session : done.sessions) text += session.name + "\n";
  return text;
}

std::string SessionLine(const protocol::SessionInfo& session) {
  return session.name + ": " + KindText(session) + ", " + Count(session.turns, "turn") + ", " +
         Count(session.tokens, "token") + ", " + Count(session.states, "state") + " of " +
         BytesText(session.disk_bytes) + "\n";
}

std::string SessionInfoText(const protocol::SessionShowDone& done) {
  const protocol::SessionInfo& session = done.session;
  std::string text = SessionLine(session);
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) text += std::string("  ") + name + Printable(value) + "\n";
  };
  add("model      ", session.model);
  add("identity   ", session.fingerprint);
  add("precision  ", session.precision);
  add("template   ", done.dialect);
  add("system     ", done.system.value_or(""));
  add("forked of  ", session.forked_from);
  add("created    ", AgoText(session.created_ms));
  add("changed    ", AgoText(session.used_ms));
  if (session.in_use) add("use        ", UseText(session));
  if (done.turns.empty()) return text;
  TextTable table{Align::kRight, Align::kRight, Align::kRight, Align::kLeft, Align::kLeft};
  table.Add({"TURN", "NEW", "TOKENS", "STATE", "SAID"});
  for (size_t i = 0; i < done.turns.size(); ++i) {
    const protocol::SessionTurn& turn = done.turns[i];
    const std::string said = turn.user && !turn.user->empty() ? *turn.user : turn.content;
    table.Add({std::to_string(i + 1), std::to_string(turn.generated), std::to_string(turn.tokens),
               turn.state_id.empty() ? "-" : turn.state_id.substr(0, 12), Said(said)});
  }
  return text + table.Text("  ");
}

std::string SessionSaidText(const protocol::SessionShowDone& done) {
  const bool chat = done.session.kind == protocol::kChatSession;
  std::string text;
  if (done.system) text += "system: " + *done.system + "\n";
  for (const protocol::SessionTurn& turn : done.turns) {
    if (chat) text += "> ";
    text += turn.user.value_or("");
    if (chat) text += "\n";
    text += turn.content;
    if (chat) text += "\n";
  }
  if (!text.empty() && !text.ends_with('\n')) text += "\n";
  return text;
}

std::string SessionDiffText(const std::string& a, const std::string& b,
                            const protocol::SessionDiffDone& done) {
  std::string text = Count(done.common_turns, "turn") + " in common, " +
                     Count(done.common_tokens, "token") + "; " + a + " has " +
                     Count(done.turns_a, "turn") + " and " + Count(done.tokens_a, "token") + ", " +
                     b + " has " + Count(done.turns_b, "turn") + " and " +
                     Count(done.tokens_b, "token") + "\n";
  if (!done.rest_a.empty()) text += a + " goes on: " + Said(done.rest_a) + "\n";
  if (!done.rest_b.empty()) text += b + " goes on: " + Said(done.rest_b) + "\n";
  if (!done.same_model) text += "they are of different models\n";
  if (!done.states_missing.empty()) {
    return text + "states: not compared, " + Printable(done.states_missing) + "\n";
  }
  if (done.identical) return text + "states: the same\n";
  text += "states: how far they are apart\n";
  TextTable table{Align::kLeft, Align::kRight, Align::kRight, Align::kRight};
  table.Add({"ARRAY", "LAYERS", "DIFFERENT", "DISTANCE"});
  for (const auto& array : done.arrays) {
    const double share = array.elements == 0 ? 0
                                             : static_cast<double>(array.different) /
                                                   static_cast<double>(array.elements);
    table.Add({array.array, std::to_string(array.layers), Percent(share), Percent(array.relative)});
  }
  text += table.Text("  ");
  if (done.unmatched > 0) {
    text += "  " + Count(done.unmatched, "array") + " of other sizes, as of other texts\n";
  }
  return text;
}

}  // namespace mk::client
