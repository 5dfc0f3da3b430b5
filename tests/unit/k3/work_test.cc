// The work of a token against sizes that a second reader finds in the file, and against the memory
// that a model takes.

#include <gtest/gtest.h>

#include <string>

#include "tests/reference/mkim_parse.h"
#include "tests/unit/model/golden_data.h"
#include "tests/unit/model/run_model.h"

namespace mk::test {
namespace {

bool Contains(const std::string& name, const char* part) {
  return name.find(part) != std::string::npos;
}

uint64_t Elements(const reference::Tensor& tensor) {
  uint64_t count = 1;
  for (const uint32_t dim : tensor.dims) count *= dim;
  return count;
}

// A model file as its tensors' names and dims tell it.
struct FileCount {
  explicit FileCount(const std::string& path) : model(reference::ParseMkim(path)) {
    for (const auto& [name, tensor] : model.tensors) {
      const uint64_t elements = Elements(tensor);
      if (name == "embed_tokens.weight") {
        embedding_row = tensor.dims[1];
      } else if (name == "vq_codebook") {
        continue;
      } else if (Contains(name, ".experts.")) {
        expert_elements += elements;
        expert_bytes += tensor.bytes.size();
      } else {
        spine_elements += elements;
        if (Contains(name, "kv_b_proj")) {
          kv_elements += elements;
          key_elements += elements * Dim("mla_nope") / (Dim("mla_nope") + Dim("mla_v"));
        }
        if (Contains(name, "res_proj.weight") || Contains(name, "res_norm.weight")) {
          mix_elements += elements;
        }
        if (Contains(name, "A_log")) rate_elements += elements, ++kda_layers;
      }
    }
    head_elements = Elements(model.tensors.at("lm_head.weight"));
  }
  uint64_t Dim(const char* key) const { return model.config.at(key).get<uint64_t>(); }

  reference::ParsedModel model;
  uint64_t embedding_row = 0;
  uint64_t spine_elements = 0;  // all that is no embedding and no routed expert
  uint64_t expert_elements = 0;
  uint64_t expert_bytes = 0;
  uint64_t head_elements = 0;
  uint64_t kv_elements = 0;
  uint64_t key_elements = 0;   // of it: key rows
  uint64_t mix_elements = 0;   // pairs of vectors that are multiplied when they are read
  uint64_t rate_elements = 0;  // one per head or channel, spread over all channels
  uint64_t kda_layers = 0;
};

class Work : public testing::TestWithParam<const char*> {
 protected:
  Work() : path_(LoadGolden("k3", GetParam()).model_path), file_(path_) {}
  const std::string path_;
  const FileCount file_;
};

TEST_P(Work, ExactSpineIsTheFloatsOfTheFile) {
  const auto work = Load(path_)->Work(Precision::kExact);
  ASSERT_TRUE(work);
  const uint64_t width = file_.Dim("kda_heads") * file_.Dim("kda_dim");
  const uint64_t floats = file_.spine_elements + file_.embedding_row - file_.mix_elements / 2 +
                          file_.kda_layers * width - file_.rate_elements;
  EXPECT_GE(work->spine_bytes, floats * sizeof(float));
  // Zero rows complete the last panel of a matrix: at most 15 of its width.
  uint64_t padding = 0;
  for (const auto& [name, tensor] : file_.model.tensors) {
    if (tensor.dims.size() == 2 && !Contains(name, ".experts.")) padding += 15 * tensor.dims[1];
  }
  // kv_b_proj is a matrix per head, and of its key rows the transposed form is read.
  const uint64_t heads = file_.Dim("mla_heads");
  padding += file_.kv_elements > 0 ? file_.Dim("n_layers") * heads * 15 *
                                         (file_.Dim("mla_nope") + file_.Dim("mla_kv_lora"))
                                   : 0;
  EXPECT_LE(work->spine_bytes, (floats + padding) * sizeof(float));
}

TEST_P(Work, SpineIsTheMemoryThatAPrecisionTakes) {
  for (const Precision precision : {Precision::kBf16, Precision::kQ8}) {
    const auto model = Load(path_);
    const uint64_t before = model->resident_bytes();
    EXPECT_FALSE(model->Work(precision)) << "not prepared yet";
    ASSERT_TRUE(model->Prepare(precision, {}));
    const uint64_t taken = model->resident_bytes() - before;
    const auto work = model->Work(precision);
    ASSERT_TRUE(work);
    // Key rows are held twice and read once; the embedding is another precision's too; every part
    // begins at a cache line.
    const uint64_t read = work->spine_bytes - file_.embedding_row * sizeof(float);
    const uint64_t unread = 2 * file_.key_elements;  // never less than bf16
    const uint64_t parts =
        file_.model.tensors.size() + 3 * file_.Dim("mla_heads") * file_.Dim("n_layers");
    EXPECT_GE(taken, read + unread) << PrecisionName(precision);
    EXPECT_LE(taken, read + unread + unread / 2 + 64 * parts) << PrecisionName(precision);
  }
}

TEST_P(Work, ExpertsAreTheChosenPartOfAll) {
  const auto model = Load(path_);
  const auto work = model->Work(Precision::kExact);
  ASSERT_TRUE(work);
  EXPECT_GE(work->all_expert_bytes, file_.expert_bytes);
  EXPECT_LE(work->all_expert_bytes, file_.expert_bytes + file_.expert_bytes / 4);
  const double share =
      static_cast<double>(work->expert_bytes) / static_cast<double>(work->all_expert_bytes);
  EXPECT_NEAR(share,
              static_cast<double>(model->info().top_k) / static_cast<double>(model->info().experts),
              1e-3);
}

TEST_P(Work, OperationsAreThoseOfTheMatrices) {
  const auto model = Load(path_);
  const auto work = model->Work(Precision::kExact);
  ASSERT_TRUE(work);
  EXPECT_EQ(work->head_multiply_adds, file_.head_elements);
  const uint64_t states =
      4 * file_.kda_layers * file_.Dim("kda_heads") * file_.Dim("kda_dim") * file_.Dim("kda_dim");
  const uint64_t width = file_.Dim("kda_heads") * file_.Dim("kda_dim");
  EXPECT_EQ(work->multiply_adds,
            file_.spine_elements - file_.head_elements - file_.mix_elements / 2 +
                file_.kda_layers * width - file_.rate_elements + states +
                file_.expert_elements / model->info().experts * model->info().top_k);
  // The same in every precision.
  ASSERT_TRUE(model->Prepare(Precision::kQ8, {}));
  const auto q8 = model->Work(Precision::kQ8);
  ASSERT_TRUE(q8);
  EXPECT_EQ(q8->multiply_adds, work->multiply_adds);
  EXPECT_LT(q8->spine_bytes, work->spine_bytes);
}

TEST_P(Work, ContextIsWhatASequenceGrowsBy) {
  for (const Precision precision : {Precision::kExact, Precision::kBf16, Precision::kQ8}) {
    const auto model = Load(path_, precision);
    const auto executor = MakeExecutor(1);
    const auto sequence = MakeSequence(*model, {.precision = precision});
    const uint64_t before = sequence->state_bytes();
    Feed(*model, *executor, *sequence, RandomTokens(kPrefillBlock, model->info().vocab, 1));
    const auto work = model->Work(precision);
    ASSERT_TRUE(work);
    EXPECT_EQ(work->context_bytes * kPrefillBlock, sequence->state_bytes() - before)
        << PrecisionName(precision);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, Work, testing::ValuesIn(kK3Cases),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
}  // namespace mk::test
