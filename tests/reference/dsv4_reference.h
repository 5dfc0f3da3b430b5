// The DeepSeek-V4 forward pass in plain f64, one token at a time, written from the equations. It
// keeps everything it has ever computed, is slow, and is the judge of the engine: nobody optimises
// it.
//
// Notation of the comments: d hidden width, S residual streams, H heads of width D of which R is
// rotated, r the compression ratio of a layer, E routed experts of which k serve a token.

#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tests/reference/k3_reference.h"
#include "tests/reference/mkim_parse.h"

namespace mk::reference {

// Everything the reference says about one token.
struct Dsv4Trace {
  Vector logits;                          // [V]
  std::vector<Vector> attention;          // per layer [d], before it is written to the streams
  std::vector<Vector> feed_forward;       // per layer [d], likewise
  std::vector<Vector> hidden;             // per layer [S d], the streams leaving the layer
  std::vector<std::vector<int>> experts;  // per layer, in order of selection
  std::vector<Vector> weights;            // per layer [k]
  std::vector<std::vector<int>> rows;     // per layer: compressed rows attended to, ascending
  std::vector<double> router_gap;         // last selected key minus first rejected
  std::vector<double> index_gap;          // the same for index scores, infinite without a choice
  // Least distance of any value that was rounded to FP8 or FP4 from a boundary, in parts of the
  // largest value of its block. Another order of summation may round such a value to the other
  // side.
  double rounding_margin = 1;
};

class Dsv4Reference {
 public:
  explicit Dsv4Reference(const ParsedModel& model);
  ~Dsv4Reference();
  Dsv4Reference(const Dsv4Reference&) = delete;
  Dsv4Reference& operator=(const Dsv4Reference&) = delete;

  // Ingests one token; the state goes on from there.
  Dsv4Trace Feed(int token);

 private:
  struct Config;
  struct Mixer;
  struct Compressor;
  struct Layer;
  struct Mixed;

  Mixed Mix(const Mixer& mixer, const std::vector<Vector>& streams) const;
  Vector Attention(Layer& layer, const Vector& a, Dsv4Trace& trace);
  std::vector<int> PickRows(Layer& layer, const Vector& a, const Vector& latent, Dsv4Trace& trace);
  void Compress(Compressor& compressor, const Layer& layer, const Vector& a, bool index,
                Dsv4Trace& trace);
  Vector Experts(const Layer& layer, const Vector& b, int token, Dsv4Trace& trace) const;
  Vector Expert(const Matrix& w1, const Matrix& w3, const Matrix& w2, const Vector& b,
                double weight) const;
  Vector Rms(const Vector& x, const Vector& gain) const;
  Vector Turn(Vector x, size_t position, bool compressed, double direction) const;
  void RoundRow(Vector& row, Dsv4Trace& trace) const;
  void RoundIndex(Vector& row, Dsv4Trace& trace) const;
  Mixer LoadMixer(const ParsedModel& model, const std::string& name) const;
  Compressor LoadCompressor(const ParsedModel& model, const std::string& prefix) const;
  Layer LoadLayer(const ParsedModel& model, size_t index) const;

  std::unique_ptr<const Config> config_;
  std::vector<Layer> layers_;
  Matrix embedding_, head_;
  Vector final_norm_;
  std::unique_ptr<const Mixer> head_mixer_;
  size_t position_ = 0;
};

}  // namespace mk::reference
