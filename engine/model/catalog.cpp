#include "engine/model/catalog.h"

#include <fmt/format.h>

#include "embedded.h"
#include "engine/error.h"
#include "engine/model/phantom.h"
#include "engine/text/sentencepiece_tokenizer.h"

namespace kveval {

std::shared_ptr<const Model> load_model(std::string_view specification) {
  if (specification.substr(0, specification.find(':')) == "phantom") {
    const PhantomOptions options = parse_phantom(specification);
    auto model = std::make_shared<const Model>(
        build_phantom(options, make_sentencepiece_tokenizer(embedded::engine_model_phantom_tokenizer_model)));
    check_shapes(*model);
    return model;
  }
  throw Error(ErrorKind::usage, fmt::format("unknown model '{}'; this build knows: phantom", specification),
              "--model phantom, or with options: --model phantom:kappa=80,seed=3");
}

}  // namespace kveval
