#include <algorithm>
#include <initializer_list>
#include <utility>

#include "engine/format/vq1.h"
#include "engine/k3/spine.h"

namespace mk::k3 {
namespace {

// Elements of one read: 4 MiB of floats, or one row when that is more.
constexpr size_t kPieceElements = size_t{1} << 20;

class Layout {
 public:
  Layout(const MkimFile& file, const K3Shape& shape, Precision precision, std::byte* base)
      : file_(file), shape_(shape), base_(base) {
    switch (precision) {
      case Precision::kExact:
        plain_ = never_bytes_ = WeightKind::kF32;
        break;
      case Precision::kBf16:
        plain_ = never_bytes_ = WeightKind::kBf16;
        break;
      case Precision::kQ8:
        plain_ = WeightKind::kQ8;
        never_bytes_ = WeightKind::kBf16;
        break;
    }
  }

  Result<TableLayout> Tables() {
    TableLayout out;
    out.tables.embedding = Table("embed_tokens.weight", shape_.vocab, shape_.hidden).data();
    if (file_.FindTensor("vq_codebook") != nullptr) {
      out.tables.codebook = Table("vq_codebook", 1, kVq1CodebookSize);
    }
    if (!status_) return Fail(status_.error());
    out.bytes = bytes_;
    out.pieces = std::move(pieces_);
    return out;
  }

  Result<SpineLayout> Spine() {
    const size_t d = shape_.hidden;
    SpineLayout out;
    K3Weights& w = out.weights;
    w.head = Stack({{"lm_head.weight", shape_.vocab}}, d);
    w.final_norm = Table("norm.weight", 1, d);
    w.output_mix = Product("output_attn_res_norm.weight", "output_attn_res_proj.weight", d);
    for (size_t l = 0; l < shape_.layers; ++l) {
      prefix_ = "layers." + std::to_string(l) + ".";
      w.layers.push_back(Layer(l));
    }
    if (!status_) return Fail(status_.error());
    out.bytes = bytes_;
    out.read_bytes = read_bytes_;
    out.pieces = std::move(pieces_);
    return out;
  }

 private:
  using Part = std::pair<const char*, size_t>;  // tensor name, rows

  LayerWeights Layer(size_t l) {
    const size_t d = shape_.hidden;
    LayerWeights w;
    w.input_norm = Table("input_layernorm.weight", 1, d);
    w.post_norm = Table("post_attention_layernorm.weight", 1, d);
    w.attention_mix =
        Product("self_attention_res_norm.weight", "self_attention_res_proj.weight", d);
    w.mlp_mix = Product("mlp_res_norm.weight", "mlp_res_proj.weight", d);
    const std::string layer = prefix_;
    prefix_ = layer + "self_attn.";
    if (shape_.attention[l] == AttentionKind::kKda) {
      w.kda = Kda();
    } else {
      w.mla = Mla();
    }
    if (shape_.feed_forward[l] == FeedForwardKind::kDense) {
      prefix_ = layer + "mlp.";
      const size_t inner = shape_.dense_inner;
      w.dense.input = Stack({{"gate_proj.weight", inner}, {"up_proj.weight", inner}}, d);
      w.dense.output = Stack({{"down_proj.weight", d}}, inner);
    } else {
      prefix_ = layer + "block_sparse_moe.";
      w.moe = Moe();
    }
    return w;
  }

  KdaWeights Kda() {
    const size_t d = shape_.hidden;
    const size_t p = shape_.kda_width;
    KdaWeights w;
    w.input = Stack({{"q_proj.weight", p},
                     {"k_proj.weight", p},
                     {"v_proj.weight", p},
                     {"g_proj.weight", p},
                     {"f_a_proj.weight", shape_.decay_rank},
                     {"b_proj.weight", shape_.kda_heads}},
                    d);
    w.decay = Stack({{"f_b_proj.weight", p}}, shape_.decay_rank, never_bytes_);
    w.output = Stack({{"o_proj.weight", d}}, p);
    w.conv = Convolutions();
    w.decay_bias = Table("dt_bias", 1, p);
    w.decay_rate = DecayRate();
    w.norm = Table("o_norm.weight", 1, shape_.kda_dim);
    return w;
  }

  MlaWeights Mla() {
    const size_t d = shape_.hidden;
    const size_t heads = shape_.mla_heads;
    MlaWeights w;
    w.input = Stack({{"q_a_proj.weight", shape_.query_rank},
                     {"kv_a_proj_with_mqa.weight", shape_.latent_row()},
                     {"g_proj.weight", heads * shape_.value}},
                    d);
    w.query = Stack({{"q_b_proj.weight", heads * shape_.qk}}, shape_.query_rank);
    w.output = Stack({{"o_proj.weight", d}}, heads * shape_.value);
    w.query_norm = Table("q_a_layernorm.weight", 1, shape_.query_rank);
    w.latent_norm = Table("kv_a_layernorm.weight", 1, shape_.kv_rank);
    KeyValueHeads(w);
    return w;
  }

  MoeWeights Moe() {
    const size_t d = shape_.hidden;
    MoeWeights w;
    w.router = Stack({{"gate.weight", shape_.experts}}, d);
    w.input = Stack({{"routed_expert_down_proj.weight", shape_.routed_width},
                     {"shared_experts.gate_proj.weight", shape_.shared_inner},
                     {"shared_experts.up_proj.weight", shape_.shared_inner}},
                    d);
    w.routed_up = Stack({{"routed_expert_up_proj.weight", d}}, shape_.routed_width);
    w.shared_down = Stack({{"shared_experts.down_proj.weight", d}}, shape_.shared_inner);
    w.bias = Table("gate.e_score_correction_bias", 1, shape_.experts);
    w.routed_norm = Table("routed_expert_norm.weight", 1, shape_.routed_width);
    return w;
  }

  // A tensor with this many elements; nullptr after an error.
  const TensorEntry* Find(const std::string& name, size_t elements) {
    const std::string full = prefix_ + name;
    const TensorEntry* entry = file_.FindTensor(full);
    if (entry != nullptr && entry->elements() == elements) return entry;
    if (status_) {
      const std::string problem =
          entry == nullptr ? "has no tensor " + full
                           : "tensor " + full + " has dims " + DimsText(entry->dims()) + ", " +
                                 std::to_string(elements) + " elements are needed";
      status_ = Fail(ErrorCode::kCorrupt, file_.path() + ": " + problem,
                     "the file was written wrongly; export or build it again");
    }
    return nullptr;
  }

  // Memory, rounded up to whole cache lines; a span without memory when counting.
  std::span<std::byte> Take(size_t bytes) {
    const size_t begin = bytes_;
    bytes_ += (bytes + 63) / 64 * 64;
    if (base_ == nullptr) return {};
    return {base_ + begin, bytes};
  }
  std::span<std::byte> TakeFloats(size_t floats) { return Take(floats * sizeof(float)); }
  static const float* Floats(std::span<const std::byte> memory) {
    return reinterpret_cast<const float*>(memory.data());
  }

  void Add(const SpinePiece& piece) {
    read_bytes_ += piece.count * sizeof(float);
    if (base_ != nullptr && piece.tensor != nullptr) pieces_.push_back(piece);
  }

  // One piece per kPieceElements of `piece`, whole rows each.
  void AddRows(SpinePiece piece, size_t rows) {
    const size_t step = std::max<size_t>(1, kPieceElements / piece.cols);
    const std::span<std::byte> destination = piece.destination;
    const size_t first_row = piece.destination_row;
    for (size_t row = 0; row < rows; row += step) {
      piece.first = static_cast<uint64_t>(row) * piece.cols;
      piece.count = std::min(step, rows - row) * piece.cols;
      if (piece.kind == SpinePiece::Kind::kPack) {
        piece.destination_row = first_row + row;
      } else if (!destination.empty()) {
        piece.destination =
            destination.subspan(piece.first * sizeof(float), piece.count * sizeof(float));
      }
      Add(piece);
    }
  }

  Vector Table(const char* name, size_t rows, size_t cols) {
    SpinePiece piece;
    piece.tensor = Find(name, rows * cols);
    piece.cols = cols;
    piece.destination = TakeFloats(rows * cols);
    AddRows(piece, rows);
    return {Floats(piece.destination), rows * cols};
  }

  PackedMatrix Stack(std::initializer_list<Part> parts, size_t cols) {
    return Stack(parts, cols, plain_);
  }

  PackedMatrix Stack(std::initializer_list<Part> parts, size_t cols, WeightKind kind) {
    size_t rows = 0;
    for (const Part& part : parts) rows += part.second;
    SpinePiece piece;
    piece.kind = SpinePiece::Kind::kPack;
    piece.cols = cols;
    piece.packing = kind;
    piece.destination = Take(PackedBytes(kind, rows, cols));
    for (const auto& [name, count] : parts) {
      const size_t first_row = piece.destination_row;
      piece.tensor = Find(name, count * cols);
      AddRows(piece, count);
      piece.destination_row = first_row + count;
    }
    return {kind, piece.destination.data(), rows, cols};
  }

  Vector Product(const char* name, const char* factor, size_t count) {
    SpinePiece piece;
    piece.kind = SpinePiece::Kind::kProduct;
    piece.tensor = Find(name, count);
    piece.factor = Find(factor, count);
    piece.count = count;
    piece.destination = TakeFloats(count);
    Add(piece);
    return {Floats(piece.destination), count};
  }

  Vector DecayRate() {
    const bool per_head = file_.config().a_log == ALogReading::kHead;
    SpinePiece piece;
    piece.kind = per_head ? SpinePiece::Kind::kHeadRate : SpinePiece::Kind::kChannelRate;
    piece.count = per_head ? shape_.kda_heads : shape_.kda_dim;
    piece.tensor = Find("A_log", piece.count);
    piece.destination = TakeFloats(shape_.kda_width);
    Add(piece);
    return {Floats(piece.destination), shape_.kda_width};
  }

  const float* Convolutions() {
    const size_t floats = shape_.kda_width * shape_.conv_taps;
    const std::span<std::byte> all = TakeFloats(3 * floats);
    const char* const names[] = {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"};
    for (size_t stream = 0; stream < 3; ++stream) {
      SpinePiece piece;
      piece.kind = SpinePiece::Kind::kConv;
      piece.tensor = Find(names[stream], floats);
      piece.count = floats;
      if (!all.empty()) {
        piece.destination = all.subspan(stream * floats * sizeof(float), floats * sizeof(float));
      }
      Add(piece);
    }
    return Floats(all);
  }

  // Wkvb [M (n + v), r_kv]: per head n key rows, then v value rows.
  void KeyValueHeads(MlaWeights& w) {
    const size_t rank = shape_.kv_rank;
    const size_t head_rows = shape_.nope + shape_.value;
    SpinePiece piece;
    piece.tensor = Find("kv_b_proj.weight", shape_.mla_heads * head_rows * rank);
    piece.cols = rank;
    piece.packing = never_bytes_;
    for (size_t h = 0; h < shape_.mla_heads; ++h) {
      piece.kind = SpinePiece::Kind::kKeyRows;
      piece.first = static_cast<uint64_t>(h) * head_rows * rank;
      piece.count = shape_.nope * rank;
      piece.destination = Take(PackedBytes(never_bytes_, shape_.nope, rank));
      piece.second = Take(PackedBytes(never_bytes_, rank, shape_.nope));
      w.key.push_back({never_bytes_, piece.destination.data(), shape_.nope, rank});
      w.key_transposed.push_back({never_bytes_, piece.second.data(), rank, shape_.nope});
      Add(piece);
      piece.kind = SpinePiece::Kind::kPack;
      piece.first += piece.count;
      piece.count = shape_.value * rank;
      piece.destination = Take(PackedBytes(never_bytes_, shape_.value, rank));
      w.value.push_back({never_bytes_, piece.destination.data(), shape_.value, rank});
      Add(piece);
    }
  }

  const MkimFile& file_;
  const K3Shape& shape_;
  std::byte* base_;
  WeightKind plain_ = WeightKind::kF32;
  WeightKind never_bytes_ = WeightKind::kF32;
  std::string prefix_;
  Status status_;
  size_t bytes_ = 0;
  uint64_t read_bytes_ = 0;
  std::vector<SpinePiece> pieces_;
};

}  // namespace

Result<SpineLayout> LayOutSpine(const MkimFile& file, const K3Shape& shape, Precision precision,
                                std::byte* base) {
  return Layout(file, shape, precision, base).Spine();
}

Result<TableLayout> LayOutTables(const MkimFile& file, const K3Shape& shape, std::byte* base) {
  return Layout(file, shape, Precision::kExact, base).Tables();
}

}  // namespace mk::k3
