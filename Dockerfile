# docker build -t antecedent . && docker run --rm antecedent        (docs/install.md)
FROM python:3.11-slim
WORKDIR /antecedent
COPY requirements.txt ./
# From torch's own index the build for CPUs comes, which is small; everything else is as in the lock.
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -r requirements.txt
# What is written lies in these three; a volume that is mounted there belongs to who owns them here.
RUN useradd --uid 1000 --create-home reader && mkdir runs probes .cache && chown reader: runs probes .cache
COPY . ./
USER 1000
CMD ["python", "train.py"]
