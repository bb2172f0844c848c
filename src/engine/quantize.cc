#include "engine/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/cpu_info.h"
#include "base/thread_pool.h"
#include "engine/open_tokenizer.h"
#include "engine/prompt.h"
#include "model/gguf_export.h"
#include "model/gguf_model.h"
#include "model/gguf_names.h"
#include "model/load_config.h"
#include "model/read_weights.h"
#include "tensor/blocks.h"
#include "tensor/finite.h"
#include "text/gguf_tokenizer_export.h"
#include "weights/gguf.h"
#include "weights/published_weights.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;

// The wanted format, or the next one that rows of so many elements fit.
DType TypeFor(DType wanted, const std::string& file_name, int64_t columns) {
  const bool is_table = file_name == "token_embd.weight" || file_name == "output.weight";
  const bool is_small = wanted == DType::kQ4_0 || wanted == DType::kQ4_K;
  // Only what is read once a token and makes up nearly all of a model is worth so coarse steps.
  if (wanted == DType::kMXFP4 && file_name.find(".ffn_") == std::string::npos) wanted = DType::kQ8_0;
  for (const DType type : {is_table && is_small ? DType::kQ6_K : wanted, DType::kQ8_0}) {
    if (columns % BlockElements(type) == 0) return type;
  }
  return DType::kF16;
}

// A tensor of the checkpoint, and how the file has it.
struct Source {
  ConstTensorView view;
  std::vector<int64_t> order = {};  // row i of the file is row order[i]; none: row i
  double offset = 0.0;              // what every number has more in the file
  bool is_transposed = false;       // the file's row i is column i
};

std::vector<float> ReadRow(const Source& from, int64_t row) {
  const int64_t num_rows = from.view.shape[0];
  const int64_t columns = from.view.shape.rank() == 2 ? from.view.shape[1] : 1;
  const auto* bytes = static_cast<const std::byte*>(from.view.data);
  std::vector<float> values;
  if (from.is_transposed) {
    for (int64_t i = 0; i < num_rows; ++i) values.push_back(LoadAsF32(from.view.dtype, bytes, i * columns + row));
  } else {
    values.resize(static_cast<size_t>(columns));
    const int64_t source_row = from.order.empty() ? row : from.order[static_cast<size_t>(row)];
    ToF32(from.view.dtype, bytes + source_row * BytesOf(from.view.dtype, columns), columns, values.data());
  }
  if (from.offset == 0.0) return values;  // and zeros keep their sign
  for (float& value : values) value = static_cast<float>(value + from.offset);
  return values;
}

// False where a number is not finite, before or after: formats would turn it into one that looks like any other, f16
// has a smaller range, and bf16 rounds the largest numbers to more than it has.
bool FillRows(const Source& from, DType type, const Shape& shape, ThreadPool& pool, std::span<std::byte> to) {
  const int64_t columns = shape.rank() == 2 ? shape[1] : 1;
  const int64_t to_bytes = BytesOf(type, columns);
  // Blocks that are as they are wanted are not made again.
  const bool is_as_wanted =
      IsBlockFormat(type) && from.view.dtype == type && from.order.empty() && from.offset == 0.0 && !from.is_transposed;
  if (is_as_wanted) {
    std::memcpy(to.data(), from.view.data, to.size());
    return true;
  }
  std::atomic<bool> all_finite = true;
  pool.ParallelFor(shape[0], [&](int64_t row, int) {
    std::vector<float> values = ReadRow(from, row);
    if (!AllFinite(values)) {
      all_finite = false;
      return;
    }
    std::byte* target = to.data() + row * to_bytes;
    FromF32(type, values.data(), columns, target);
    if (type != DType::kF16 && type != DType::kBF16) return;
    ToF32(type, target, columns, values.data());
    if (!AllFinite(values)) all_finite = false;
  });
  return all_finite;
}

void SetChatTemplates(std::vector<ChatTemplateText> templates, GgufMetadata& metadata) {
  std::vector<std::string> names;
  for (ChatTemplateText& each : templates) {
    const bool is_default = each.name == "default";
    metadata.SetString(is_default ? kChatTemplateKey : ChatTemplateKey(each.name), std::move(each.source));
    if (!is_default) names.push_back(std::move(each.name));
  }
  if (!names.empty()) metadata.Set(kChatTemplateNamesKey, {GgufType::kString, std::move(names)});
}

void SetTokenizer(GgufTokenizerArrays arrays, GgufMetadata& metadata) {
  metadata.SetString("tokenizer.ggml.model", arrays.kind);
  if (arrays.kind == "gpt2") {
    metadata.SetString("tokenizer.ggml.pre", arrays.splitting.empty() ? "default" : arrays.splitting);
  }
  metadata.Set("tokenizer.ggml.tokens", {GgufType::kString, std::move(arrays.tokens)});
  metadata.Set("tokenizer.ggml.token_type", {GgufType::kI32, std::move(arrays.token_types)});
  if (!arrays.scores.empty()) metadata.Set("tokenizer.ggml.scores", {GgufType::kF32, std::move(arrays.scores)});
  if (!arrays.merges.empty()) metadata.Set("tokenizer.ggml.merges", {GgufType::kString, std::move(arrays.merges)});
  if (arrays.bos_id) metadata.SetU32("tokenizer.ggml.bos_token_id", *arrays.bos_id);
  if (arrays.unknown_id) metadata.SetU32("tokenizer.ggml.unknown_token_id", *arrays.unknown_id);
  metadata.SetBool("tokenizer.ggml.add_bos_token", arrays.adds_bos.value_or(false));
  if (arrays.adds_space_prefix) metadata.SetBool("tokenizer.ggml.add_space_prefix", *arrays.adds_space_prefix);
  if (arrays.padding_id) metadata.SetU32("tokenizer.ggml.padding_token_id", *arrays.padding_id);
  SetChatTemplates(std::move(arrays.chat_templates), metadata);
  if (!arrays.tokenizer_json.empty()) {
    metadata.SetString("tokenizer.huggingface.json", std::move(arrays.tokenizer_json));
  }
}

// A checkpoint that is being made into a file.
class Conversion {
 public:
  explicit Conversion(const QuantizeOptions& options)
      : options_(options), pool_(options.num_threads > 0 ? options.num_threads : NumUsableCores()) {}

  Result<QuantizeResult> Run() {
    HW_RETURN_IF_ERROR(Open());
    HW_RETURN_IF_ERROR(ListTensors());
    int64_t num_bytes = 0;
    HW_RETURN_IF_ERROR(WriteGguf(options_.out, metadata_, tensors_, [&](const GgufTensor& tensor) {
      num_bytes += BytesOf(tensor.dtype, tensor.shape.num_elements());
      if (options_.on_progress) options_.on_progress(num_bytes, result_.file_bytes);
    }));
    return result_;
  }

 private:
  Status Open() {
    if (IsGgufPath(options_.model)) {
      return Status::InvalidInput(fmt::format("{}: is a file, expected a Hugging Face folder", options_.model));
    }
    HW_RETURN_IF_ERROR(CheckOutIsNoSource());
    HW_ASSIGN_OR_RETURN(config_, ReadModelConfig(options_.model));
    HW_RETURN_IF_ERROR(AddGenerationEosIds(options_.model, config_));
    const fs::path folder(options_.model);
    HW_ASSIGN_OR_RETURN(const Json checkpoint, ReadJsonFile((folder / "config.json").string()));
    auto metadata = GgufMetadataOf(config_, checkpoint);
    if (!metadata.ok()) return std::move(metadata).status().Annotate(options_.model);
    metadata_ = *std::move(metadata);
    architecture_ = FindGgufArchitecture(config_.family);
    HW_ASSIGN_OR_RETURN(source_, OpenWeightsFolder(options_.model));
    const fs::path named = fs::absolute(folder).lexically_normal();
    metadata_.SetString("general.name", (named.has_filename() ? named : named.parent_path()).filename().string());
    metadata_.SetString(kGgufSourceHashKey, SourceHash(*source_));
    return AddTokenizer(folder);
  }

  // It would be replaced: by another name, or through links, too.
  Status CheckOutIsNoSource() const {
    std::error_code error;
    for (const auto& file : fs::directory_iterator(options_.model, error)) {
      if (!fs::equivalent(options_.out, file.path(), error)) continue;
      const std::string extension = file.path().extension().string();
      if (extension == ".gguf") continue;  // of an earlier time
      return Status::InvalidInput(
          fmt::format("{}: is a file of the model {}, expected another to write", options_.out, options_.model));
    }
    return Status::Ok();
  }

  Status AddTokenizer(const fs::path& folder) {
    auto tokenizer = ExportTokenizer(folder, config_.vocab_size, architecture_->name);
    if (tokenizer.ok()) {
      const std::optional<int64_t> eos_id = tokenizer->eos_id;
      // A file has no third way between yes and no, and no config beside it that could be asked.
      const auto bos_id = BeginOfText(tokenizer->adds_bos, tokenizer->bos_id, config_);
      tokenizer->adds_bos = bos_id.has_value();
      if (bos_id) tokenizer->bos_id = bos_id;
      SetTokenizer(*std::move(tokenizer), metadata_);
      return SetEndIds(eos_id);
    }
    if (tokenizer.status().code() != StatusCode::kNotFound) return std::move(tokenizer).status();
    metadata_.SetString("tokenizer.ggml.model", "none");
    return Status::Ok();
  }

  // Files have a key each for the end of a text, of a turn and of a message; an answer ends with any of them.
  Status SetEndIds(std::optional<int64_t> of_tokenizer) {
    std::vector<int64_t> ids(config_.eos_ids.begin(), config_.eos_ids.end());
    const auto first = of_tokenizer ? std::ranges::find(ids, *of_tokenizer) : ids.end();
    if (first != ids.end()) std::rotate(ids.begin(), first, first + 1);
    if (ids.empty() && of_tokenizer) ids.push_back(*of_tokenizer);
    constexpr const char* kKeys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                     "tokenizer.ggml.eom_token_id"};
    if (ids.size() > std::size(kKeys)) {
      return Status::Unsupported(fmt::format("{}: {} end-of-sequence tokens, expected at most {} for a GGUF file",
                                             options_.model, ids.size(), std::size(kKeys)));
    }
    for (size_t i = 0; i < ids.size(); ++i) metadata_.SetU32(kKeys[i], ids[i]);
    return Status::Ok();
  }

  Status ListTensors() {
    HW_ASSIGN_OR_RETURN(read_, ReadModelWeights(config_, *source_));
    for (const std::string& name : read_.names) {
      if (!GgufIsOfExpert(name)) HW_RETURN_IF_ERROR(AddTensor(name));
    }
    for (size_t i = 0; i < read_.weights.layers.size(); ++i) AddExperts(i, read_.weights.layers[i].experts);
    rope_tensors_ = GgufRopeTensors(config_);
    for (const GgufRopeTensor& tensor : rope_tensors_) {
      Add(tensor.name, {.view = {tensor.values.data(), DType::kF32, {static_cast<int64_t>(tensor.values.size())}}},
          tensor.name, DType::kF32);
    }
    return Status::Ok();
  }

  Status AddTensor(const std::string& name) {
    const std::optional<std::string> file_name = GgufTensorName(*architecture_, name);
    if (!file_name) {
      return Status::Unsupported(fmt::format("{}: tensor \"{}\" has no name in the GGUF architecture {}",
                                             source_->origin(), name, architecture_->name));
    }
    HW_ASSIGN_OR_RETURN(const ConstTensorView view, source_->Get(name));
    if (const auto head = GgufHeadOf(*architecture_, name)) return AddHead(name, view, *head, *file_name);
    DType type = DType::kF32;
    const Source source = {.view = view,
                           .order = GgufRowOrder(*architecture_, config_, name),
                           .offset = GgufOffset(*architecture_, name),
                           .is_transposed = GgufIsTransposed(*architecture_, name)};
    // What is added or multiplied with element by element, whatever its shape, stays as it is; and routers, whose small
    // differences decide who computes.
    const bool is_matrix = view.shape.rank() == 2 && !file_name->ends_with("_norm.weight") &&
                           *file_name != "position_embd.weight" &&
                           file_name->find(".ffn_gate_inp") == std::string::npos;
    if (is_matrix) {
      type = TypeFor(options_.type, *file_name, view.shape[source.is_transposed ? 0 : 1]);
      ++result_.num_matrices[type];
    }
    Add(name, source, *file_name, type);
    return Status::Ok();
  }

  // A row of a tensor that the file has in one. Names are sorted as text, which is not the order of numbers.
  Status AddHead(const std::string& name, const ConstTensorView& view, int64_t head, const std::string& file_name) {
    std::vector<ConstTensorView>& heads = heads_[file_name];
    const int64_t columns = view.shape.num_elements();
    const int64_t num_heads = file_name.ends_with("attn_q_norm.weight") ? config_.num_q_heads : config_.num_kv_heads;
    if (heads.empty()) {
      heads.resize(static_cast<size_t>(num_heads));
      const auto fill = [this, name, columns, &heads](std::span<std::byte> bytes) -> Status {
        const auto row_bytes = static_cast<size_t>(BytesOf(DType::kF32, columns));
        for (size_t i = 0; i < heads.size(); ++i) {
          const Shape row{columns};
          if (!FillRows({.view = heads[i]}, DType::kF32, row, pool_, bytes.subspan(i * row_bytes, row_bytes))) {
            return NotFinite(name, heads[i], DType::kF32);
          }
        }
        return Status::Ok();
      };
      result_.file_bytes += BytesOf(DType::kF32, num_heads * columns);
      tensors_.push_back({.name = file_name, .dtype = DType::kF32, .shape = {num_heads, columns}, .fill = fill});
    }
    HW_CHECK(head < num_heads, "{} of {}", head, num_heads);
    heads[static_cast<size_t>(head)] = view;
    result_.source_bytes += view.size_bytes();
    return Status::Ok();
  }

  // A layer's matrices of all experts as one tensor each, and their biases.
  void AddExperts(size_t layer, const std::vector<ExpertWeights>& experts) {
    if (experts.empty()) return;
    constexpr LinearWeights ExpertWeights::*kMembers[] = {&ExpertWeights::gate, &ExpertWeights::up,
                                                          &ExpertWeights::down};
    for (size_t i = 0; i < std::size(kMembers); ++i) {
      const std::string name = fmt::format(fmt::runtime(kGgufExpertTensors[i]), layer);
      std::vector<ConstTensorView> weights, biases;
      for (const ExpertWeights& expert : experts) {
        weights.push_back((expert.*kMembers[i]).weight.rows());
        if ((expert.*kMembers[i]).bias.present()) biases.push_back((expert.*kMembers[i]).bias);
      }
      const DType type = TypeFor(options_.type, name, weights[0].shape[1]);
      result_.num_matrices[type] += static_cast<int64_t>(weights.size());
      AddStack(name + ".weight", std::move(weights), type);
      if (!biases.empty()) AddStack(name + ".bias", std::move(biases), DType::kF32);
    }
  }

  void AddStack(const std::string& name, std::vector<ConstTensorView> parts, DType type) {
    const auto num_parts = static_cast<int64_t>(parts.size());
    const Shape part = parts[0].shape;
    const Shape shape = part.rank() == 2 ? Shape{num_parts, part[0], part[1]} : Shape{num_parts, part[0]};
    const int64_t part_bytes = BytesOf(type, part.num_elements());
    for (const ConstTensorView& each : parts) result_.source_bytes += each.size_bytes();
    result_.file_bytes += num_parts * part_bytes;
    const auto fill = [this, name, parts = std::move(parts), part, part_bytes, type](std::span<std::byte> bytes) {
      for (size_t i = 0; i < parts.size(); ++i) {
        const auto size = static_cast<size_t>(part_bytes);
        if (!FillRows({.view = parts[i]}, type, part, pool_, bytes.subspan(i * size, size))) {
          return NotFinite(name, parts[i], type);
        }
      }
      return Status::Ok();
    };
    tensors_.push_back({.name = name, .dtype = type, .shape = shape, .fill = fill});
  }

  Status NotFinite(const std::string& name, const ConstTensorView& view, DType type) const {
    const auto found = FindNonFinite(view);
    return Status::InvalidInput(
        found ? fmt::format("{}: tensor \"{}\" holds {}, expected finite numbers", source_->origin(), name, *found)
              : fmt::format("{}: tensor \"{}\" holds numbers beyond the range of {}, expected smaller ones or {}",
                            source_->origin(), name, NameOf(type), type == DType::kBF16 ? "f32" : "bf16"));
  }

  void Add(const std::string& name, const Source& source, const std::string& file_name, DType type) {
    const Shape shape = source.is_transposed ? Shape{source.view.shape[1], source.view.shape[0]} : source.view.shape;
    result_.source_bytes += source.view.size_bytes();
    result_.file_bytes += BytesOf(type, shape.num_elements());
    tensors_.push_back({.name = file_name,
                        .dtype = type,
                        .shape = shape,
                        .fill = [this, name, source, shape, type](std::span<std::byte> bytes) {
                          if (FillRows(source, type, shape, pool_, bytes)) return Status::Ok();
                          return NotFinite(name, source.view, type);
                        }});
  }

  const QuantizeOptions& options_;
  ThreadPool pool_;
  ModelConfig config_;
  const GgufArchitecture* architecture_ = nullptr;
  std::unique_ptr<WeightSource> source_;
  ReadTensors read_;
  GgufMetadata metadata_;
  std::vector<GgufRopeTensor> rope_tensors_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, std::vector<ConstTensorView>> heads_;  // by the file's name
  QuantizeResult result_;
};

}  // namespace

Result<QuantizeResult> QuantizeModel(const QuantizeOptions& options) {
  HW_RETURN_IF_ERROR(CheckNumThreads(options.num_threads));
  return Conversion(options).Run();
}

}  // namespace headwise
