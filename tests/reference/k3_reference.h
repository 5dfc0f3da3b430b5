// The Kimi K3 forward pass in plain f64, one token at a time, written from the equations. It is
// slow, allocates freely, and is the judge of the engine: nobody optimises it.
//
// Notation of the comments: d hidden width, H x D the KDA heads and their size (P = H*D), M the
// MLA heads with key parts n (per head) and rho (shared) and value size v, E routed experts of
// which k serve a token, m their latent width.

#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tests/reference/mkim_parse.h"

namespace mk::reference {

using Vector = std::vector<double>;

struct Matrix {
  size_t rows = 0;
  size_t cols = 0;
  Vector values;  // [rows][cols]
};

// Everything the reference says about one token.
struct TokenTrace {
  Vector logits;                          // [V]
  std::vector<Vector> attention;          // per layer [d], before it is added
  std::vector<Vector> feed_forward;       // per layer [d], before it is added
  std::vector<Vector> hidden;             // per layer [d], the partial sum leaving the layer
  std::vector<std::vector<int>> experts;  // per layer, best first; empty for dense layers
  std::vector<Vector> weights;            // per layer [k]
  std::vector<double> router_gap;         // per layer: last selected key minus first rejected
};

class K3Reference {
 public:
  explicit K3Reference(const ParsedModel& model);
  ~K3Reference();
  K3Reference(const K3Reference&) = delete;
  K3Reference& operator=(const K3Reference&) = delete;

  // Ingests one token; the state goes on from there.
  TokenTrace Feed(int token);

 private:
  struct Config;
  struct Layer;

  Vector Attention(Layer& layer, const Vector& x);
  Vector KdaAttention(Layer& layer, const Vector& x);
  Vector MlaAttention(Layer& layer, const Vector& x);
  Vector FeedForward(const Layer& layer, const Vector& x, TokenTrace& trace) const;
  Vector RoutedExperts(const Layer& layer, const Vector& x, TokenTrace& trace) const;
  Vector Situ(const Vector& gate, const Vector& up) const;
  Vector Mix(const std::vector<Vector>& candidates, const Vector& weight) const;
  Vector Rms(const Vector& x, const Vector& gain) const;
  Vector Norm2(const Vector& x) const;
  Vector Values(const ParsedModel& model, const std::string& name) const;
  Matrix Load(const ParsedModel& model, const std::string& name) const;
  Layer LoadLayer(const ParsedModel& model, size_t index) const;

  std::vector<double> codebook_;
  std::unique_ptr<const Config> config_;
  std::vector<Layer> layers_;
  Matrix embedding_, head_;
  Vector final_norm_, output_mix_;
};

}  // namespace mk::reference
