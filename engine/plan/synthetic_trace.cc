#include "engine/plan/synthetic_trace.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace mk {
namespace {

// splitmix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // In [0, 1).
  double Real() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

class Router {
 public:
  Router(const SyntheticRouting& routing, Random& random) : top_k_(routing.top_k) {
    ids_.resize(routing.experts);
    std::iota(ids_.begin(), ids_.end(), 0);
    for (size_t i = ids_.size(); i > 1; --i) std::swap(ids_[i - 1], ids_[random.Next() % i]);
    double sum = 0;
    for (size_t r = 0; r < ids_.size(); ++r) {
      sum += std::pow(static_cast<double>(r + 1), -routing.skew);
      sums_.push_back(sum);
    }
    seen_.resize(routing.experts);
  }

  // Appends the picks of a token: different ones. What was picked in the same pass already is left
  // out.
  void Pick(Random& random, uint64_t token, uint64_t pass, std::vector<uint32_t>& picked) {
    for (size_t left = std::min(top_k_, ids_.size()); left > 0;) {
      const double where = random.Real() * sums_.back();
      const auto at = std::upper_bound(sums_.begin(), sums_.end(), where) - sums_.begin();
      const size_t rank = std::min(static_cast<size_t>(at), ids_.size() - 1);
      Seen& seen = seen_[rank];
      if (seen.token == token) continue;
      seen.token = token;
      --left;
      if (seen.pass != pass) picked.push_back(ids_[rank]);
      seen.pass = pass;
    }
  }

 private:
  struct Seen {
    uint64_t token = 0;  // from 1
    uint64_t pass = 0;
  };
  const size_t top_k_;
  std::vector<uint32_t> ids_;  // by rank
  std::vector<double> sums_;   // of weights up to a rank
  std::vector<Seen> seen_;     // by rank
};

}  // namespace

DemandTrace MakeTrace(const SyntheticRouting& routing, const std::vector<size_t>& tokens_of_pass) {
  Random random(routing.seed);
  DemandTrace trace;
  trace.layers = routing.in_layer.size();
  trace.experts = routing.experts;
  std::vector<Router> routers;
  for (size_t l = 0; l < trace.layers; ++l) routers.emplace_back(routing, random);
  std::vector<uint32_t> picked;
  uint64_t token = 0;
  uint64_t pass = 0;
  for (const size_t tokens : tokens_of_pass) {
    ++pass;
    for (size_t l = 0; l < trace.layers; ++l) {
      if (!routing.in_layer[l]) continue;
      picked.clear();
      for (size_t t = 1; t <= tokens; ++t) routers[l].Pick(random, token + t, pass, picked);
      for (const uint32_t expert : picked) {
        trace.demands.push_back(static_cast<ExpertKey>(l * trace.experts + expert));
      }
    }
    token += tokens;
  }
  return trace;
}

}  // namespace mk
