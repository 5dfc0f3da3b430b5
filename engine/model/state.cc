#include "engine/model/state.h"

namespace mk {
std::string_view StateArrayName(StateArray array) {
  switch (array) {
    case StateArray::kKdaConv:
      return "kda_conv";
    case StateArray::kKdaMatrix:
      return "kda_matrix";
    case StateArray::kLatentRows:
      return "latent_rows";
    case StateArray::kExpandedKeys:
      return "expanded_keys";
    case StateArray::kExpandedValues:
      return "expanded_values";
    case StateArray::kLatentCodes:
      return "latent_codes";
    case StateArray::kLatentScales:
      return "latent_scales";
    case StateArray::kWindowRows:
      return "window_rows";
    case StateArray::kCompressedRows:
      return "compressed_rows";
    case StateArray::kCompressorInputs:
      return "compressor_inputs";
    case StateArray::kIndexInputs:
      return "index_inputs";
    case StateArray::kIndexKeys:
      return "index_keys";
    case StateArray::kIndexKeyScales:
      return "index_key_scales";
  }
  return "unknown";
}

std::string_view StateTypeName(StateType type) {
  switch (type) {
    case StateType::kF32:
      return "f32";
    case StateType::kU32:
      return "u32";
    case StateType::kI8:
      return "i8";
    case StateType::kBytes:
      return "bytes";
  }
  return "unknown";
}

size_t StateTypeBytes(StateType type) {
  return type == StateType::kF32 || type == StateType::kU32 ? 4 : 1;
}

std::string SectionName(const StateSection& section) {
  return std::string(StateArrayName(section.array)) + " of layer " + std::to_string(section.layer);
}

Result<const StateKeeper*> KeeperOf(const Model& model) {
  if (const auto* keeper = dynamic_cast<const StateKeeper*>(&model)) return keeper;
  return Fail(ErrorCode::kUnsupported,
              "states of " + model.info().architecture + " models cannot be saved");
}

}  // namespace mk
