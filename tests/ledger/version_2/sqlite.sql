CREATE TABLE ablate_schema (
  version INTEGER NOT NULL,
  ledger_id TEXT,
  PRIMARY KEY (version)
);
CREATE TABLE ablate_study (
  id INTEGER NOT NULL,
  name TEXT NOT NULL,
  file TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  seed BIGINT NOT NULL,
  created_at DOUBLE NOT NULL,
  store TEXT,
  tracking TEXT,
  PRIMARY KEY (id),
  UNIQUE (name)
);
CREATE TABLE ablate_lease (
  study_id INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  revision BIGINT NOT NULL,
  holder TEXT,
  host TEXT,
  place TEXT,
  pid INTEGER,
  process_started TEXT,
  token TEXT NOT NULL,
  held_since DOUBLE,
  held_until DOUBLE,
  lease_seconds DOUBLE DEFAULT '60' NOT NULL,
  beat BIGINT DEFAULT '0' NOT NULL,
  active_seconds DOUBLE DEFAULT '0' NOT NULL,
  PRIMARY KEY (study_id),
  FOREIGN KEY(study_id) REFERENCES ablate_study (id)
);
CREATE TABLE ablate_mlflow_parent (
  study_id INTEGER NOT NULL,
  dataset TEXT NOT NULL,
  run_id TEXT NOT NULL,
  PRIMARY KEY (study_id, dataset),
  FOREIGN KEY(study_id) REFERENCES ablate_study (id)
);
CREATE TABLE ablate_note (
  id INTEGER NOT NULL,
  study_id INTEGER NOT NULL,
  kind TEXT NOT NULL,
  dataset TEXT,
  payload TEXT NOT NULL,
  driver_epoch INTEGER NOT NULL,
  created_at DOUBLE NOT NULL,
  PRIMARY KEY (id),
  FOREIGN KEY(study_id) REFERENCES ablate_study (id)
);
CREATE INDEX ix_ablate_note_study_id ON ablate_note (study_id);
CREATE TABLE ablate_trial (
  id INTEGER NOT NULL,
  study_id INTEGER NOT NULL,
  dataset TEXT NOT NULL,
  number INTEGER NOT NULL,
  stage TEXT NOT NULL,
  config TEXT NOT NULL,
  replicates INTEGER NOT NULL,
  state TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  epochs_done INTEGER NOT NULL,
  wall_seconds DOUBLE NOT NULL,
  params BIGINT,
  params_body BIGINT,
  flops BIGINT,
  shape TEXT,
  sampler_state TEXT NOT NULL,
  error TEXT,
  checkpoint TEXT,
  mlflow_run_id TEXT,
  driver_epoch INTEGER NOT NULL,
  revision BIGINT NOT NULL,
  created_at DOUBLE NOT NULL,
  started_at DOUBLE,
  finished_at DOUBLE,
  PRIMARY KEY (id),
  CONSTRAINT ablate_trial_number UNIQUE (study_id, dataset, number),
  CONSTRAINT ablate_trial_number_positive CHECK (number >= 0),
  CONSTRAINT ablate_trial_state CHECK (state IN ('WAITING', 'RUNNING', 'COMPLETE', 'PRUNED', 'FAIL')),
  CONSTRAINT ablate_trial_stage CHECK (stage IN ('search', 'confirm')),
  FOREIGN KEY(study_id) REFERENCES ablate_study (id)
);
CREATE INDEX ablate_trial_revision ON ablate_trial (study_id, revision);
CREATE TABLE ablate_report (
  id INTEGER NOT NULL,
  study_id INTEGER NOT NULL,
  trial_id INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  replicate INTEGER NOT NULL,
  metrics TEXT NOT NULL,
  diverged INTEGER NOT NULL,
  final INTEGER NOT NULL,
  decision TEXT NOT NULL,
  checkpoint TEXT,
  wall_seconds DOUBLE NOT NULL,
  driver_epoch INTEGER NOT NULL,
  created_at DOUBLE NOT NULL,
  PRIMARY KEY (id),
  CONSTRAINT ablate_report_once UNIQUE (trial_id, epoch, replicate),
  CONSTRAINT ablate_report_decision CHECK (decision IN ('CONTINUE', 'STOP')),
  FOREIGN KEY(study_id) REFERENCES ablate_study (id),
  FOREIGN KEY(trial_id) REFERENCES ablate_trial (id)
);
CREATE INDEX ablate_report_cursor ON ablate_report (study_id, id);
INSERT INTO ablate_schema (version, ledger_id) VALUES (2, 'made-by-version-2');
