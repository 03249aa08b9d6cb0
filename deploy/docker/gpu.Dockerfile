# Training and features on a GPU: torch, XGBoost and cuDF, all for CUDA 13. Built by `make images`.
# CUDA's libraries come with the wheels; the driver (580 or later) is the node's.
ARG PYTHON_DIGEST

# Only builds: uv, and the packages in lists of like size, each a layer that stays while its list does.
FROM docker.io/library/python:3.11-slim@${PYTHON_DIGEST} AS installer
COPY requirements/lock/uv.txt /
RUN pip install --no-cache-dir --no-deps --require-hashes --target /opt/uv -r /uv.txt
COPY requirements/lock/run.txt requirements/lock/gpu.txt /
# XGBoost's build for GPUs takes the place of that for CPUs: both are imported by the same name.
RUN sed --in-place '/^xgboost-cpu==/,/[^\\]$/d' /run.txt \
    && awk '/^[a-z]/ { list = $0 < "g" ? "a-f" : $0 < "p" ? "g-o" : "p-z" } { print > ("/run-" list ".txt") }' /run.txt \
    && awk '/^[a-z]/ { list = $0 ~ /^torch==/ ? "torch" : $0 < "nvidia-cublas" ? "cudf" : $0 < "nvidia-cudnn" ? "cublas" : \
        $0 < "nvidia-cus" ? "cudnn" : $0 < "nvidia-nccl-cu13" ? "cusparse" : $0 < "sortedcontainers" ? "nccl" : "triton" } \
        { print > ("/gpu-" list ".txt") }' /gpu.txt

FROM docker.io/library/python:3.11-slim@${PYTHON_DIGEST}
# XGBoost needs OpenMP's runtime, which the slim image leaves out. Triton compiles its kernels' launchers, and torch.compile its
# machine code, where they run: that takes a compiler (Python's headers are there), a small part of an image with CUDA in it.
# No versions: Debian's mirrors keep the newest of a release only, and a pinned one fails with the next security update.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libgomp1 \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/shortlist
ENV PATH=/opt/shortlist/bin:$PATH
WORKDIR /app
# uv's settings while the image is built; a busy machine may take longer for a file than uv waits by itself.
ARG UV_PYTHON=/opt/shortlist/bin/python
ARG UV_COMPILE_BYTECODE=1
ARG UV_COMPILE_BYTECODE_TIMEOUT=600
ARG UV_LINK_MODE=copy
# The package index's build is for CUDA 13. No step runs torch's own tests (130 MB).
COPY --from=installer /gpu-torch.txt requirements/lock/
RUN --mount=type=bind,from=installer,source=/opt/uv,target=/opt/uv --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv pip install --no-deps --require-hashes -r requirements/lock/gpu-torch.txt \
    && rm -rf /opt/shortlist/lib/python3.*/site-packages/torch/test /opt/shortlist/lib/python3.*/site-packages/torch/bin/*[Tt]est*
COPY --from=installer /gpu-cudf.txt requirements/lock/
RUN --mount=type=bind,from=installer,source=/opt/uv,target=/opt/uv --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv pip install --no-deps --require-hashes -r requirements/lock/gpu-cudf.txt
COPY --from=installer /gpu-cublas.txt requirements/lock/
RUN --mount=type=bind,from=installer,source=/opt/uv,target=/opt/uv --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv pip install --no-deps --require-hashes -r requirements/lock/gpu-cublas.txt
COPY --from=installer /gpu-cudnn.txt requirements/lock/
RUN --mount=type=bind,from=installer,source=/opt/uv,target=/opt/uv --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv pip install --no-deps --require-hashes -r requirements/lock/gpu-cudnn.txt
COPY --from=installer /gpu-cusparse.txt requirements/lock/
RUN --mount=type=bind,from=installer,source=/opt/uv,target=/opt/uv --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv pip install --no-deps --require-hashes -r requirements/lock/gpu-cusparse.txt
COPY --from=installer /gpu-nccl.txt requirements/lock/
RUN --mount=type=bind,from=installer,source=/opt/uv,target=/opt/uv --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv pip install --no-deps --require-hashes -r requirements/lock/gpu-nccl.txt
COPY --from=installer /gpu-triton.txt requirements/lock/
RUN --mount=type=bind,from=installer,source=/opt/uv,target=/opt/uv --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv pip install --no-deps --require-hashes -r requirements/lock/gpu-triton.txt
COPY requirements/lock/cluster.txt requirements/lock/
RUN --mount=type=bind,from=installer,source=/opt/uv,target=/opt/uv --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv pip install --no-deps --require-hashes -r requirements/lock/cluster.txt
COPY --from=installer /run-a-f.txt requirements/lock/
RUN --mount=type=bind,from=installer,source=/opt/uv,target=/opt/uv --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv pip install --no-deps --require-hashes -r requirements/lock/run-a-f.txt
COPY --from=installer /run-g-o.txt requirements/lock/
RUN --mount=type=bind,from=installer,source=/opt/uv,target=/opt/uv --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv pip install --no-deps --require-hashes -r requirements/lock/run-g-o.txt
COPY --from=installer /run-p-z.txt requirements/lock/
RUN --mount=type=bind,from=installer,source=/opt/uv,target=/opt/uv --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv pip install --no-deps --require-hashes -r requirements/lock/run-p-z.txt
COPY pyproject.toml README.md ./
COPY components components
COPY feature_repo feature_repo
COPY models models
COPY monitoring monitoring
COPY pipelines pipelines
COPY shortlist shortlist
# In place, so that the code's digest is the one of the checkout it was built from.
RUN --mount=type=bind,from=installer,source=/opt/uv,target=/opt/uv --mount=type=cache,target=/root/.cache/uv \
    /opt/uv/bin/uv pip install --no-deps --no-build-isolation --editable . \
    && python -m compileall -q components feature_repo models monitoring pipelines shortlist
ARG CODE_VERSION
ARG REVISION
LABEL org.opencontainers.image.title="shortlist-gpu" \
      org.opencontainers.image.description="Shortlist: training and features on a GPU" \
      org.opencontainers.image.version="${CODE_VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11-slim"
# The root may be read-only: everything is written below /tmp, which a pod mounts. The user has no name of its own, and
# torch would ask for one to name its folder of compiled code.
ENV HOME=/tmp \
    PYTHONPATH=/app \
    SHORTLIST_ROOT=/app \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    OMP_WAIT_POLICY=PASSIVE \
    TORCHINDUCTOR_CACHE_DIR=/tmp/torchinductor \
    TRITON_CACHE_DIR=/tmp/triton \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /tmp
USER 1000:1000
ENTRYPOINT ["shortlist"]
CMD ["--help"]
