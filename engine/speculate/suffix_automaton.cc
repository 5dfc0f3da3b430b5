#include "engine/speculate/suffix_automaton.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace mk {
namespace {

constexpr size_t kFirstSlots = 64;

uint64_t HashOf(uint32_t state, int32_t token) {
  uint64_t hash = (uint64_t{state} << 32 | static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 32);
}

}  // namespace

SuffixAutomaton::SuffixAutomaton(size_t shortest)
    : shortest_(shortest), states_(1), table_(kFirstSlots, kNone) {}

void SuffixAutomaton::Clear() {
  *this = SuffixAutomaton(shortest_);
}

SuffixAutomaton::Index SuffixAutomaton::NewState(size_t length) {
  states_.push_back({static_cast<uint32_t>(length), kNone, kNone, kNone});
  return static_cast<Index>(states_.size() - 1);
}

// Where the edge is in the table, or the free slot where it would be.
size_t SuffixAutomaton::SlotOf(Index state, int32_t token) const {
  const size_t mask = table_.size() - 1;
  size_t slot = HashOf(state, token) & mask;
  while (table_[slot] != kNone) {
    const Edge& edge = edges_[table_[slot]];
    if (edge.from == state && edge.token == token) break;
    slot = (slot + 1) & mask;
  }
  return slot;
}

SuffixAutomaton::Index SuffixAutomaton::FindEdge(Index state, int32_t token) const {
  return table_[SlotOf(state, token)];
}

void SuffixAutomaton::AddEdge(Index from, int32_t token, Index to) {
  if ((edges_.size() + 1) * 4 > table_.size() * 3) GrowTable();
  const auto edge = static_cast<Index>(edges_.size());
  edges_.push_back({token, from, to, states_[from].edges});
  states_[from].edges = edge;
  table_[SlotOf(from, token)] = edge;
}

void SuffixAutomaton::GrowTable() {
  table_.assign(table_.size() * 2, kNone);
  for (size_t i = 0; i < edges_.size(); ++i) {
    table_[SlotOf(edges_[i].from, edges_[i].token)] = static_cast<Index>(i);
  }
}

void SuffixAutomaton::Feed(int32_t token) {
  ++tokens_;
  Index state = tip_;
  for (size_t i = 0; i < kMaxLinks && state != kRoot; ++i, state = states_[state].link) {
    Count(state, token);
  }
  Extend(token);
}

void SuffixAutomaton::Extend(int32_t token) {
  const Index added = NewState(states_[tip_].length + size_t{1});
  Index state = std::exchange(tip_, added);
  Index edge = kNone;
  while (state != kNone && (edge = FindEdge(state, token)) == kNone) {
    AddEdge(state, token, added);
    state = states_[state].link;
  }
  if (state == kNone) {
    states_[added].link = kRoot;
    return;
  }
  const Index next = edges_[edge].to;
  if (states_[next].length == states_[state].length + 1) {
    states_[added].link = next;
    return;
  }
  const Index split = Split(next, states_[state].length + size_t{1});
  while (state != kNone) {
    edge = FindEdge(state, token);
    if (edge == kNone || edges_[edge].to != next) break;
    edges_[edge].to = split;
    state = states_[state].link;
  }
  states_[next].link = states_[added].link = split;
}

// A state for the substrings of `state` of at most `length` tokens.
SuffixAutomaton::Index SuffixAutomaton::Split(Index state, size_t length) {
  const Index split = NewState(length);
  states_[split].link = states_[state].link;
  for (Index e = states_[state].edges; e != kNone; e = edges_[e].next) {
    const Edge edge = edges_[e];
    AddEdge(split, edge.token, edge.to);
  }
  for (Index s = states_[state].successors; s != kNone; s = successors_[s].next) {
    Successor copy = successors_[s];
    copy.next = states_[split].successors;
    states_[split].successors = static_cast<Index>(successors_.size());
    successors_.push_back(copy);
  }
  return split;
}

float SuffixAutomaton::Score(const Successor& successor) const {
  const double age = static_cast<double>(tokens_ - successor.stamp);
  return static_cast<float>(static_cast<double>(successor.count) * std::exp2(-age / kHalfLife));
}

bool SuffixAutomaton::Better(const Successor& a, const Successor& b) const {
  const float score_a = Score(a);
  const float score_b = Score(b);
  if (score_a != score_b) return score_a > score_b;
  return a.stamp != b.stamp ? a.stamp > b.stamp : a.token < b.token;
}

void SuffixAutomaton::Count(Index state, int32_t token) {
  size_t held = 0;
  Index worst = kNone;
  for (Index s = states_[state].successors; s != kNone; s = successors_[s].next, ++held) {
    Successor& successor = successors_[s];
    if (successor.token == token) {
      successor.count = Score(successor) + 1;
      successor.stamp = tokens_;
      return;
    }
    if (worst == kNone || Better(successors_[worst], successor)) worst = s;
  }
  if (held == kMaxSuccessors) {
    successors_[worst] = {token, 1, tokens_, successors_[worst].next};
    return;
  }
  successors_.push_back({token, 1, tokens_, states_[state].successors});
  states_[state].successors = static_cast<Index>(successors_.size() - 1);
}

const SuffixAutomaton::Successor* SuffixAutomaton::Best(Index state) const {
  const Successor* best = nullptr;
  for (Index s = states_[state].successors; s != kNone; s = successors_[s].next) {
    if (best == nullptr || Better(successors_[s], *best)) best = &successors_[s];
  }
  return best != nullptr && Score(*best) >= kLeastScore ? best : nullptr;
}

Draft SuffixAutomaton::Propose(size_t most) const {
  Draft draft;
  if (tip_ == kRoot) return draft;
  Index state = states_[tip_].link;
  size_t match = states_[state].length;
  while (draft.tokens.size() < most) {
    const Successor* best = nullptr;
    for (; state != kRoot; state = states_[state].link) {
      match = std::min<size_t>(match, states_[state].length);
      if (match < shortest_ || (best = Best(state)) != nullptr) break;
    }
    if (best == nullptr) break;
    if (draft.tokens.empty()) draft.match = match;
    draft.tokens.push_back(best->token);
    state = edges_[FindEdge(state, best->token)].to;
    ++match;
  }
  return draft;
}

size_t SuffixAutomaton::bytes() const {
  return states_.capacity() * sizeof(State) + edges_.capacity() * sizeof(Edge) +
         successors_.capacity() * sizeof(Successor) + table_.capacity() * sizeof(Index);
}

size_t SuffixAutomaton::MaxBytes(size_t tokens) {
  const size_t held = std::min(tokens, kMaxHistory) + 1;
  // Vectors double. The table has at most 8 slots for 3 edges.
  return 2 * held * (2 * sizeof(State) + 3 * sizeof(Edge) + 3 * sizeof(Successor)) +
         (kFirstSlots + 8 * held) * sizeof(Index);
}

}  // namespace mk
