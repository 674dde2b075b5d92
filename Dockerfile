# docker build -t antecedent . && docker run --rm antecedent        (docs/usage.md)
FROM python:3.11-slim
WORKDIR /antecedent
COPY requirements.txt ./
# The CPU build of torch is much smaller; all other packages are as in the lock.
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -r requirements.txt
# The programs write to these three folders only; a volume mounted there gets their owner.
RUN useradd --uid 1000 --create-home reader && mkdir runs probes .cache && chown reader: runs probes .cache
COPY . ./
USER 1000
CMD ["python", "train.py"]
